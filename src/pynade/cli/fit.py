"""`pynade fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pynade.cli import baselines
from pynade.cli.screen import console, training_bar

HELP = """Train a model and keep it in a run folder.

DATA is a registered name (see `pynade data list`) or a file: .csv, .parquet, .npy or .npz, of zeros and ones
(nade, made, made-e, fvsbn, deepnade, eonade, binary-transformer, mob, chow-liu, rbm) or of real numbers
(rnade, deep-rnade, transformer, causal-transformer, permuted-transformer, gaussian, mog, mfa). Images
(convnade, hybrid, unet) may also be a folder of PNG files or an .npy stack, (N, H, W) or (N, H, W, C). Where
an option may be repeated to choose from several, the validation rows choose.

\b
Examples:
  pynade fit digits --model nade --hidden 200 --out runs/digits
  pynade fit mushrooms --model nade --optimizer sgd --learning-rate 0.05 --batch-size 10 --out runs/mushrooms
  pynade fit table.csv --model made --hidden 500 --hidden 500 --orderings 16 --out runs/table
  pynade fit digits --model eonade --hidden 500 --hidden 500 --orderings 16 --out runs/deep
  pynade fit measurements.csv --model rnade --components 10 --out runs/table
  pynade fit measurements.csv --model deep-rnade --hidden 200 --hidden 200 --out runs/with-gaps
  pynade fit mushrooms --model mob --components 32 --components 64 --components 128 --out runs/mob
  pynade fit red_wine/1 --model mfa --components 2 --components 5 --factors 1 --factors 4 --out runs/mfa
  pynade fit binarized_mnist --model hybrid --learning-rate 0.0001 --out runs/hybrid
  pynade fit folder_of_pngs --model unet --binarize random --out runs/unet
  pynade fit stack.npy --model unet --family discretised-logistic --out runs/grey
  pynade fit --resume runs/digits
"""

MODEL, TRAINING, WHERE = "Model", "Training", "Data and output"
NOT_PARAMETERS = {"data", "model", "out", "overwrite", "resume", "data_dir", "drop_constant"}


def fit(
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="A registered data set or a file.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="nade, made, made-e, fvsbn, deepnade, eonade, binary-transformer, mob, chow-liu, rbm; "
            "rnade, deep-rnade, transformer, causal-transformer, permuted-transformer, gaussian, mog, mfa; "
            "convnade, hybrid, unet.",
            rich_help_panel=MODEL,
        ),
    ] = "nade",
    hidden: Annotated[
        list[int] | None,
        typer.Option(
            help="Hidden units; repeat for more layers (not nade, rnade, rbm).", rich_help_panel=MODEL
        ),
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(help="sigmoid, relu or tanh; silu too for deepnade, eonade.", rich_help_panel=MODEL),
    ] = None,
    ordering: Annotated[
        str | None, typer.Option(help="random (default) or natural.", rich_help_panel=MODEL)
    ] = None,
    orderings: Annotated[
        int | None,
        typer.Option(
            help="Orderings trained jointly (made; made-e 32) or averaged (eonade; transformers 1, "
            "permuted-transformer 8).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    direct: Annotated[
        bool | None,
        typer.Option("--direct", help="Direct input-output connections (made).", rich_help_panel=MODEL),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Law of each conditional: mog (default), mol, mologistic, gaussian, fv, laplace, sas, "
            "student (rnade, deep-rnade, transformer); bernoulli (default), categorical or "
            "discretised-logistic (convnade, unet).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    components: Annotated[
        list[int] | None,
        typer.Option(
            help="Components of mixtures (rnade, mog 10; mob 32; mfa 5; chow-liu 1); repeat to choose "
            "from several (not rnade).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    standardise: Annotated[
        bool | None,
        typer.Option(
            help="Standardise columns inside the model, the default (rnade, gaussian, mog, mfa).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    sigma_floor: Annotated[
        float | None,
        typer.Option(
            help="Smallest scale of a law, standardised [0.001] (rnade, transformers).", rich_help_panel=MODEL
        ),
    ] = None,
    scale_mean_gradient: Annotated[
        bool | None,
        typer.Option(
            "--scale-mean-gradient",
            help="Multiply the gradient of each location by its scale (rnade).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    input_observed: Annotated[
        bool | None,
        typer.Option(
            help="Tell the net which inputs are observed (deepnade, eonade, made, convnade).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    residual: Annotated[
        bool | None,
        typer.Option("--residual", help="Residual layers (deepnade, eonade).", rich_help_panel=MODEL),
    ] = None,
    layer_norm: Annotated[
        bool | None,
        typer.Option("--layer-norm", help="Normalise layers (deepnade, eonade).", rich_help_panel=MODEL),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            help="Share of hidden units dropped in training (deepnade, eonade, made, transformers).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    blueprint: Annotated[
        str | None,
        typer.Option(
            help="Layers joined by ->, in quotes: MAPS@HxW(valid), (same) or (full) is a convolution, "
            "pool@HxW and up@HxW pool and repeat; the last has one map of the image's size, as in "
            '"64@8x8(valid)->1@8x8(full)" (convnade).',
            rich_help_panel=MODEL,
        ),
    ] = None,
    hybrid: Annotated[
        list[int] | None,
        typer.Option(help="Hidden units of a net beside it; repeat (convnade).", rich_help_panel=MODEL),
    ] = None,
    image_shape: Annotated[
        str | None,
        typer.Option(
            metavar="HxW",
            help="Shape of an image; by default the data's (convnade, unet).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    levels: Annotated[
        int | None, typer.Option(help="Grey levels [256] (convnade, unet).", rich_help_panel=MODEL)
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Maps (unet [64]), numbers per token (transformer [256]).", rich_help_panel=MODEL),
    ] = None,
    multipliers: Annotated[
        list[int] | None,
        typer.Option(help="Maps of each level over width; repeat [1 2 2] (unet).", rich_help_panel=MODEL),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Residual blocks per level [2] (unet).", rich_help_panel=MODEL)
    ] = None,
    attention: Annotated[
        list[int] | None,
        typer.Option(
            help="Levels with attention; repeat; by default all but 0 (unet).", rich_help_panel=MODEL
        ),
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Groups of maps normalised together [8] (unet).", rich_help_panel=MODEL)
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Blocks [6] (transformer).", rich_help_panel=MODEL)
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention heads (unet [4], transformer [8]).", rich_help_panel=MODEL)
    ] = None,
    mlp_ratio: Annotated[
        int | None, typer.Option(help="Hidden units over width [4] (transformer).", rich_help_panel=MODEL)
    ] = None,
    fixed_order: Annotated[
        bool | None,
        typer.Option(
            help="One ordering only: a causal transformer (transformer, binary-transformer).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    causal: Annotated[
        bool | None,
        typer.Option(
            help="All orderings, in one pass each: a causal transformer (transformer, binary-transformer).",
            rich_help_panel=MODEL,
        ),
    ] = None,
    pretrain_epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs after each new layer before training (deepnade, eonade).", rich_help_panel=MODEL
        ),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="adam (default), adamw or sgd.", rich_help_panel=TRAINING)
    ] = None,
    learning_rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Initial step size [0.001; nade 0.003; rbm 0.1, repeat to choose from several].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="constant (default), linear, inverse or cosine.", rich_help_panel=TRAINING),
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(help="Updates in which the rate rises [0; unet 200].", rich_help_panel=TRAINING),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Of the inverse schedule, rate / (1 + gamma t).", rich_help_panel=TRAINING),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD [0].", rich_help_panel=TRAINING)] = None,
    momentum_after: Annotated[
        int | None, typer.Option(help="Epochs before momentum sets in [0].", rich_help_panel=TRAINING)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="L2 strength [0].", rich_help_panel=TRAINING)
    ] = None,
    decay_on: Annotated[
        str | None,
        typer.Option(help="all parameters (default) or the input matrix.", rich_help_panel=TRAINING),
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm.", rich_help_panel=TRAINING)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows per update [100].", rich_help_panel=TRAINING)
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="At most this many [200; rbm 100].", rich_help_panel=TRAINING)
    ] = None,
    updates_per_epoch: Annotated[
        int | None, typer.Option(help="Minibatches in an epoch; default one pass.", rich_help_panel=TRAINING)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Epochs or iterations without a better validation score before stopping [10; deepnade, "
            "eonade 30; mfa 20; chow-liu 5].",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    ema: Annotated[
        float | None,
        typer.Option(help="Keep a running average of the weights, such as 0.999.", rich_help_panel=TRAINING),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="float32 (default) or bf16, on a GPU (unet's default).", rich_help_panel=TRAINING),
    ] = None,
    stop_at_train: Annotated[
        float | None,
        typer.Option(help="Stop when the training log-likelihood passes this.", rich_help_panel=TRAINING),
    ] = None,
    score_train: Annotated[
        int | None,
        typer.Option(
            help="Score so many training rows like the validation rows, after every epoch.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    factors: baselines.Factors = None,
    alpha: baselines.Alpha = None,
    smoothing: baselines.Smoothing = None,
    iterations: baselines.Iterations = None,
    tolerance: baselines.Tolerance = None,
    cd_steps: baselines.CDSteps = None,
    persistent: baselines.Persistent = None,
    n_init: baselines.NInit = None,
    evaluate_every: baselines.EvaluateEvery = None,
    ais_chains: baselines.AISChains = None,
    ais_steps: baselines.AISSteps = None,
    gibbs_steps: baselines.GibbsSteps = None,
    init: baselines.Init = None,
    shrinkage: baselines.Shrinkage = None,
    covariance_floor: baselines.CovarianceFloor = None,
    noise_floor: baselines.NoiseFloor = None,
    minibatch: baselines.Minibatch = None,
    step_size: baselines.StepSize = None,
    zero_means: baselines.ZeroMeans = None,
    validation_fraction: Annotated[
        float | None,
        typer.Option(help="Held out where the data have no validation part [0.1].", rich_help_panel=WHERE),
    ] = None,
    binarize: Annotated[
        str | None,
        typer.Option(
            help="Threshold: values above become 1, others 0 (of grey images a share of white); or "
            "random, random:SEED: pixels drawn with their share of white.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of ordering, weights and shuffling.", rich_help_panel=WHERE)] = 0,
    device: Annotated[
        str | None, typer.Option(help="auto (default), cpu or cuda.", rich_help_panel=WHERE)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to make.", rich_help_panel=WHERE)] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace an earlier run in that folder.", rich_help_panel=WHERE),
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with an interrupted run.", rich_help_panel=WHERE),
    ] = None,
    drop_constant: Annotated[
        bool,
        typer.Option("--drop-constant", help="Leave out columns that never vary.", rich_help_panel=WHERE),
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the data sets [$PYNADE_DATA].", rich_help_panel=WHERE)
    ] = None,
) -> None:
    """Train a model (the help is HELP above)."""
    given: dict[str, Any] = {k: v for k, v in locals().items() if v is not None}
    from pynade.runs.run import counted, read_spec, resume_run, start_run

    asked = model if resume is None else read_spec(resume)["model"]
    with training_bar(counted(asked)) as bar:
        if resume is not None:
            if data is not None or out is not None:
                raise ValueError(
                    "--resume RUN takes everything from the run folder; give no DATA and no --out"
                )
            extra = set(given) - {"model", "seed", "overwrite", "resume", "data_dir", "drop_constant"}
            if extra or model != "nade" or seed != 0 or overwrite or drop_constant:
                raise ValueError("--resume RUN goes on with the run's own settings; give no others")
            folder, result = resume, resume_run(resume, data_dir=data_dir, callbacks=[bar])
        else:
            if data is None or out is None:
                raise ValueError("say what to train on and where to keep it: pynade fit DATA --out RUN")
            folder = out
            result = start_run(
                out,
                model,
                baselines.parameters_of(
                    model, {name: value for name, value in given.items() if name not in NOT_PARAMETERS}
                ),
                data,
                data_dir=data_dir,
                overwrite=overwrite,
                drop_constant=drop_constant,
                callbacks=[bar],
            )
    valid = result["valid"]
    score = ""
    if valid is not None:
        kind = "exact" if valid["exact"] else "estimate"
        score = f", validation {valid['mean']:.3f} ± {valid['stderr']:.3f} nats ({kind})"
    if len(result.get("choices", ())) > 1:
        score += ", chosen " + ", ".join(f"{name} {value}" for name, value in result["chosen"].items())
    passes = counted(asked) + ("s" if result["epochs"] != 1 else "")
    console.print(
        f"{folder}: {result['epochs']} {passes}, best {result['best_epoch']}{score}, "
        f"{result['seconds']:.1f} s ({result['stopped']})"
    )
    for message in result.get("messages", ()):
        console.print(message)
