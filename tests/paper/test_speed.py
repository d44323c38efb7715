"""The speed section of the results page."""

import json

from pynade_paper.speed import speed_sections


def test_every_task_of_every_record_is_shown(tmp_path):
    assert list(speed_sections(tmp_path)) == []
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    ours = {"ours": {"median": 0.002}, "ratios": {"loop": 31.24}, "share_of_ceiling": 0.5}
    shapes = [
        {"shape": {"B": 2, "D": 3, "H": 4, "ones": 0.13, "K": 0}, "tasks": {"log_prob": ours}},
        {"shape": {"B": 2, "D": 3, "H": 4, "ones": None, "K": 5}, "tasks": {"train step": ours}},
    ]
    cpu = {"device": "cpu (x)", "threads": 2, "shapes": shapes}
    (folder / "nade-cpu.json").write_text(json.dumps(cpu))
    line = {"K": 2, "members": 48, "alone": 0.02, "together": 0.004, "ratio": 5.0}
    crowd = {"device": "cuda (y)", "threads": 1, "lines": [line]}
    (folder / "population-gpu.json").write_text(json.dumps(crowd))
    timed = {"ours": {"median": 0.5}, "scikit-learn": {"median": 2.25}}
    tree = {"problem": "MoG: K=2", "contenders": timed, "ratios": {"scikit-learn": 4.5}}
    (folder / "baselines-cpu.json").write_text(json.dumps(cpu | {"problems": [tree]}))
    text = "\n".join(speed_sections(tmp_path))
    assert text.count("## Speed") == 1
    assert "| cpu (x), 2 threads | MoG: K=2 | ours | 500.0 | – |" in text
    assert "| cpu (x), 2 threads | MoG: K=2 | scikit-learn | 2,250.0 | 4.5 |" in text
    assert "| cpu (x), 2 threads | 2, 3, 4; 13% ones | log_prob | 2.00 | 31.2 | – | – | 50% |" in text
    assert "| cpu (x), 2 threads | 2, 3, 4; real, 5 Gaussians | train step | 2.00 |" in text
    assert "| cuda (y) | 2 | 48 | 20.00 | 4.000 | 5.0× |" in text
