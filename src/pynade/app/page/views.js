// The views: Ask, Rows, Gaps, Samples, Images. Each gives the nodes to show.

import { ask, badge, download, givenValues, say, send, showCode, state, tip, update } from "/app.js";
import { axisText, bars, count, heat, histogram, legend, matrix, narrow, node, paint, percent, short } from "/charts.js";

const wide = () => (narrow.matches ? 340 : 640);

const notes = (found) => (found.notes || []).map((text) => node("p", { class: "note", text }));

function summary(found) {
  const line = node("p", { class: "answer", "aria-live": "polite" });
  if (found.levels) line.append("likeliest ", node("b", { id: `mode-${found.column}`, text: String(found.mode) }));
  else {
    line.append("median ", node("b", { "data-number": "median", text: short(found.median) }), ", 90 % between ",
      node("b", { "data-number": "low", text: short(found.low) }), " and ", node("b", { "data-number": "high", text: short(found.high) }));
    if (found.mean !== undefined) line.append(", mean ", node("b", { "data-number": "mean", text: short(found.mean) }));
  }
  line.append(" ", badge(found.badge));
  return line;
}

function distribution(found) {
  const label = `Distribution of ${found.column}${found.n_given ? ` given ${found.n_given} columns` : ""}`;
  const other = found.n_given ? found.marginal : null;
  const chart = found.levels
    ? bars(found.levels, found.p, other, { width: wide(), label })
    : histogram(found.edges, found.p, other, { at: found.at, step: found.step, date: found.kind === "date", width: wide(), label });
  const before = other ? [[found.levels ? "before" : "outline", "without what is given"]] : [];
  const range = found.levels ? [] : [["interval", "90 % interval, with the median"]];
  const rest = found.levels ? 1 - found.p.reduce((total, p) => total + p, 0) : 0;
  const said = rest < 0.0005 ? [] : [node("p", { class: "quiet", text: `${percent(rest)} are left for values that no training row has.` })];
  return [chart, legend(["", other ? "with what is given" : "probability"], ...before, ...range), ...said];
}

function asTable(found) {
  const end = (k) => axisText(found.edges[k], found.kind === "date");
  const names = found.levels ? found.levels.map(String) : found.p.map((_, k) => `${end(k)} to ${end(k + 1)}`);
  const rows = names.map((name, k) => node("tr", {}, node("th", { scope: "row", text: name }), node("td", { class: "number", text: percent(found.p[k]) }),
    node("td", { class: "number", text: percent(found.marginal[k]) })));
  const first = found.levels ? "level" : "above … up to";
  const head = node("tr", {}, ...[first, "probability", "without what is given"].map((text) => node("th", { scope: "col", text })));
  return node("details", {}, node("summary", { text: "Probabilities as a table" }), node("div", { class: "scroll" }, node("table", {}, head, ...rows)));
}

const views = {};
export { views };

views.ask = {
  title: "Ask",
  asks: true,
  possible: () => true,
  async show(current) {
    if (!state.asked.length) {
      showCode(state.model.code);
      return [node("p", { text: "Click a column to ask about it; two give their joint density." })];
    }
    const given = givenValues();
    const found = await ask("conditional", { asked: state.asked, given });
    if (!current()) return null;
    showCode(found.code);
    const known = Object.entries(given).map(([name, value]) => `${name} = ${typeof value === "number" ? Number(value.toPrecision(6)) : value}`).join(", ");
    const title = node("h2", { text: `${state.asked.join(" and ")}${known ? ` given ${known}` : ""}` });
    if (found.columns) {
      const far = node("span", { class: "quiet", text: ` The two orderings are apart by ${found.badge.spread.toFixed(3)} (total variation distance).` });
      return [title, ...notes(found), node("p", {}, "density ", badge(found.badge), far), heat(found, { width: Math.min(560, wide()) }),
        legend(["", "density of the model"], ...(found.points.length ? [["point", known ? "real rows near what is given" : "real rows"]] : [])),
        ...found.columns.flatMap((one) => [node("h3", { text: one.column }), summary(one)])];
    }
    const spread = node("p", { class: "quiet", id: "spread" });
    if (known) {
      ask("spread", { asked: state.asked, given }).then((more) => {
        if (more.spread !== null) spread.textContent = `${more.k} orderings differ by at most ${more.spread.toFixed(3)} (total variation distance).`;
      }).catch((error) => { spread.textContent = error.message; });
    }
    const error = found.badge.error ? [node("p", { class: "quiet", text: `Probabilities are ± ${found.badge.error.toFixed(3)} at most, by the number of draws.` })] : [];
    return [title, ...notes(found), summary(found), ...error, spread, ...distribution(found), asTable(found)].filter(Boolean);
  },
};

// What was expected of a cell given the others of its row; asked when a cell is pointed at or has the focus.
function explain(cell, column, given, first) {
  let text = null;
  const open = async () => {
    tip(text || first, cell);
    if (text) return;
    try {
      const found = await ask("conditional", { asked: [column], given });
      const top = (k) => found.levels.map((level, j) => [found.p[j], level]).sort((a, b) => b[0] - a[0]).slice(0, k);
      const expected = found.levels
        ? top(3).map(([p, level]) => `${level} ${percent(p)}`).join(", ")
        : `${short(found.median)}, 90 % between ${short(found.low)} and ${short(found.high)}`;
      text = `${first} Expected: ${expected} (${found.badge.text}).`;
    } catch (error) {
      text = `${first} ${error.message}`;
    }
    cell.setAttribute("aria-label", `${cell.textContent}. ${text}`);
    if (document.activeElement === cell || cell.matches(":hover")) tip(text, cell);
  };
  cell.tabIndex = 0;
  cell.setAttribute("aria-label", `${cell.textContent}. ${first}`);
  cell.addEventListener("focus", open);
  cell.addEventListener("mouseenter", open);
  for (const name of ["blur", "mouseleave"]) cell.addEventListener(name, () => tip(""));
}

// The arrow keys move between the cells that explain themselves; Tab goes to one of them only.
function withArrows(table) {
  const cells = [...table.querySelectorAll("td[tabindex]")];
  const focusable = (cell) => cells.forEach((other) => { other.tabIndex = other === cell ? 0 : -1; });
  focusable(cells[0]);
  table.addEventListener("focusin", (event) => cells.includes(event.target) && focusable(event.target));
  table.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    let k = cells.indexOf(event.target);
    if (!move || k < 0) return;
    event.preventDefault();
    const below = event.key === "ArrowDown" || event.key === "ArrowUp";
    do k += move; while (below && cells[k] && cells[k].cellIndex !== event.target.cellIndex);
    cells[k]?.focus();
  });
  return table;
}

const others = (names, values, known, without) => Object.fromEntries(
  names.map((name, k) => [name, values[k], known[k], k]).filter(([, value, is, k]) => is && k !== without && value !== null),
);

const page = { start: 0, lowest: true, n: 25 };
views.rows = {
  title: "Rows",
  possible: (model) => model.sorts_rows,
  async show() {
    const found = await ask("rows", page);
    showCode(found.code);
    const move = (by) => () => { page.start = Math.max(0, page.start + by); update(); };
    const order = node("select", { id: "order", onchange: (event) => { page.lowest = event.target.selectedIndex === 0; page.start = 0; update(); } },
      node("option", { text: "least likely first", selected: page.lowest }), node("option", { text: "likeliest first", selected: !page.lowest }));
    const tools = node("div", { class: "tools" }, node("label", { for: "order", text: "Order" }), order,
      node("button", { type: "button", text: "Previous", disabled: page.start === 0, onclick: move(-page.n) }),
      node("button", { type: "button", text: "Next", disabled: page.start + page.n >= found.scored, onclick: move(page.n) }),
      node("span", { class: "quiet", text: `${count(found.scored)} of ${count(found.total)} rows were scored${found.scored < found.total ? ", a random part: all would take too long" : ""}.` }), badge(found.badge));
    const apart = found.rows.some((line) => line.spread !== null);
    const head = node("tr", {}, ...["row", "log p", ...(apart ? ["± orderings"] : []), ...found.columns].map((text) => node("th", { scope: "col", text })));
    const lines = found.rows.map((line) => node("tr", {}, node("th", { scope: "row", text: short(line.row) }),
      node("td", { class: "number", text: line.log_prob === null ? "–" : line.log_prob.toFixed(2) }), ...(apart ? [node("td", { class: "number", text: line.spread === null ? "–" : line.spread.toFixed(2) })] : []),
      ...line.cells.map((value, k) => {
        const cell = node("td", { text: short(value), class: value === null ? "missing" : typeof value });
        const nats = line.surprise?.[k];
        if (nats === null || nats === undefined) return cell;
        cell.style.backgroundColor = `rgba(var(--odd), ${Math.min(0.75, Math.max(0, nats - 1.5) / 9).toFixed(2)})`;
        explain(cell, found.columns[k], others(found.columns, line.cells, line.known, k), `A value at least as odd has probability ${percent(Math.exp(-nats))}.`);
        return cell;
      })));
    const spread = apart ? "log p in nats, ± its standard deviation over 8 orderings. " : "log p in nats. ";
    const hint = spread + (found.rows.some((line) => line.surprise) ? "Cells are shaded by their surprise given the rest of their row; point at one, or move to it with Tab and the arrow keys, for what was expected." : "");
    return [tools, ...notes(found), node("p", { class: "quiet", text: hint }), node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rows by log p" }, withArrows(node("table", {}, head, ...lines)))];
  },
};

const gaps = { file: null, draws: 5, found: null };
views.gaps = {
  title: "Gaps",
  possible: (model) => !model.image_shape,
  async show() {
    const take = async (file) => {
      if (!file) return;
      if (file.size > state.model.limits.bytes) { say(`The file has more than ${count(state.model.limits.bytes)} bytes.`); return; }
      gaps.file = file;
      gaps.found = null;
      await update();
    };
    const choose = node("input", { type: "file", id: "file", accept: ".csv,text/csv", onchange: (event) => take(event.target.files[0]) });
    const drop = node("div", {
      class: "drop", ondragover: (event) => { event.preventDefault(); drop.classList.add("over"); }, ondragleave: () => drop.classList.remove("over"),
      ondrop: (event) => { event.preventDefault(); drop.classList.remove("over"); take(event.dataTransfer.files[0]); },
    }, node("label", { for: "file", text: `Drop ${gaps.file ? "another" : "a"} CSV file with gaps here, or choose one: ` }), choose,
    node("p", { class: "quiet", text: `At most ${count(state.model.limits.rows)} rows; it stays on this server's machine and is not kept.` }));
    if (!gaps.file) { showCode(state.model.code); return [drop]; }
    const found = gaps.found || (gaps.found = await send("fill", gaps.file));
    showCode(found.code);
    const stem = gaps.file.name.replace(/\.csv$/i, "");
    const several = node("input", { type: "number", id: "draws", min: 1, max: 20, value: gaps.draws, onchange: (event) => { gaps.draws = Number(event.target.value); } });
    const tools = node("div", { class: "tools" },
      node("span", { id: "filled" }, node("b", { text: count(found.filled) }), ` gaps in ${count(found.n)} rows of ${gaps.file.name} filled `), badge(found.badge),
      node("button", { type: "button", class: "primary", id: "download", text: "Download the filled table", onclick: () => download(`${stem}-filled.csv`, found.csv) }),
      node("label", { for: "draws", text: "Draws" }), several,
      node("button", {
        type: "button", id: "download-draws", text: "Download several draws",
        onclick: async () => {
          try {
            say("Drawing …");
            const more = await send(`fill?draws=${gaps.draws}`, gaps.file);
            showCode(more.code);
            download(`${stem}-draws.csv`, more.csv);
            say("");
          } catch (error) { say(error.message); }
        },
      }));
    const head = node("tr", {}, ...found.columns.map((text) => node("th", { scope: "col", text })));
    const lines = found.rows.map((cells, i) => node("tr", {}, ...cells.map((value, k) => {
      const filled = found.marks[i].includes(k);
      const cell = node("td", { text: short(value), class: value === null ? "missing" : `${typeof value}${filled ? " filled" : ""}` });
      if (filled) explain(cell, found.columns[k], others(found.columns, cells, found.known.map((is, j) => is && !found.marks[i].includes(j)), k), "Filled.");
      return cell;
    })));
    const more = found.n > found.rows.length ? [node("p", { class: "quiet", text: `The first ${found.rows.length} rows are shown.` })] : [];
    return [drop, ...notes(found), tools, ...more, node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Filled table" }, withArrows(node("table", {}, head, ...lines)))];
  },
};

const drawn = { n: 1000, seed: 0 };
views.samples = {
  title: "Samples",
  asks: true,
  possible: () => true,
  async show() {
    const found = await ask("samples", { ...drawn, given: givenValues() });
    showCode(found.code);
    const again = node("button", { type: "button", text: "Draw again", onclick: () => { drawn.seed += 1; update(); } });
    if (found.images) {
      const side = (name, title) => (found.images[name] ? [node("h3", { text: title }), node("div", { class: "thumbs" }, ...found.images[name].map((pixels, k) => picture(pixels, `${title} ${k + 1}`))),
        ...(found.images[name].length ? [] : [node("p", { class: "quiet", text: "No real image has these pixels." })])] : []);
      return [node("div", { class: "tools" }, again, badge(found.badge)), ...side("sampled", "Sampled"), ...side("real", state.given.size ? "Real, near what is given" : "Real")];
    }
    const save = node("button", { type: "button", text: "Download the draws", onclick: () => download("draws.csv", found.csv) });
    const against = found.real_rows === null ? "There are no data to compare with." : `Against ${count(found.real_rows)} real rows${state.given.size ? " near what is given" : ""}.`;
    const few = found.real_rows !== null && found.real_rows < 30 ? [node("p", { class: "note", text: "So few real rows say little." })] : [];
    const matrices = Object.entries(found.correlations).map(([side, rows]) => {
      const canvas = node("canvas", { class: "matrix", role: "img", "aria-label": `Correlations, ${side}` });
      matrix(canvas, rows);
      canvas.addEventListener("mousemove", (event) => {
        const [j, i] = [event.offsetX / canvas.clientWidth, event.offsetY / canvas.clientHeight].map((v) => Math.min(rows.length - 1, Math.max(0, Math.floor(v * rows.length))));
        tip(`${found.numbers[i]}, ${found.numbers[j]}: ${short(rows[i][j])}`, canvas);
      });
      canvas.addEventListener("mouseleave", () => tip(""));
      return node("div", {}, node("h3", { text: `Correlations, ${side}` }), canvas);
    });
    let apart = [];
    if (found.correlations.real && found.correlations.sampled) {
      const { real, sampled } = found.correlations;
      const gap = real.flatMap((line, i) => line.map((r, j) => [i < j && r !== null && sampled[i][j] !== null ? Math.abs(r - sampled[i][j]) : NaN, i, j])).filter(([v]) => v === v);
      const [most, i, j] = gap.reduce((a, b) => (b[0] > a[0] ? b : a), [-1]);
      const mean = gap.reduce((total, [v]) => total + v, 0) / gap.length;
      if (gap.length) apart = [node("p", { text: `Correlations of ${found.numbers.length} columns of numbers differ by ${mean.toFixed(3)} on average, ${most.toFixed(3)} at most (${found.numbers[i]} and ${found.numbers[j]}).` })];
    }
    const real = found.real_rows === null ? [] : [["before", (one) => one.levels], ["outline", (one) => !one.levels]].filter(([, is]) => found.columns.some(is)).map(([kind]) => kind);
    const charts = found.columns.filter((one) => !state.given.has(one.column)).slice(0, 300).map((one) => node("div", {}, node("h3", { text: one.column }), one.levels
      ? bars(one.levels, one.sampled, one.real, { most: 8, width: 300, label: `Levels of ${one.column}, sampled and real` })
      : histogram(one.edges, one.sampled, one.real, { step: one.step, width: 300, height: 130, date: one.kind === "date", label: `${one.column}, sampled and real` })));
    return [node("div", { class: "tools" }, again, save, badge(found.badge), node("span", { class: "quiet", text: against })), ...notes(found), ...few,
      legend(["", "sampled"], ...real.map((kind) => [kind, "real"])), node("div", { class: "small" }, ...charts),
      ...(matrices.length ? [node("h2", { text: "Correlations" }), ...apart, node("p", { class: "quiet", text: `Blue above 0, red below, in the order: ${found.numbers.slice(0, 40).join(", ")}` }), node("div", { class: "pair" }, ...matrices)] : [])];
  },
};

function picture(pixels, label) {
  const canvas = node("canvas", { class: "thumb", role: "img", "aria-label": label });
  paint(canvas, state.model.image_shape, pixels.map((v) => v / state.model.white));
  return canvas;
}

const hole = { row: 0, seed: 0, places: new Set(), cursor: null, brush: 1, pixels: null, erase: false };
views.images = {
  title: "Images",
  possible: (model) => model.image_shape !== null,
  async show() {
    const { image_shape: shape, white, data } = state.model;
    const [channels, height, width] = shape.length === 3 ? shape : [1, ...shape];
    const row = data ? hole.row : null;
    const found = await ask("image", { row, seed: hole.seed });
    hole.pixels = found.pixels;
    showCode(found.code);
    const canvas = node("canvas", { class: "paint", id: "paint", tabindex: 0, role: "application", "aria-label": "The image. Paint a hole with the pointer, or with the arrow keys and Space." });
    const redraw = () => paint(canvas, shape, found.pixels.map((v) => v / white), hole.places, hole.cursor);
    const mark = (x, y, on) => {
      for (let i = -hole.brush; i <= hole.brush; i += 1) for (let j = -hole.brush; j <= hole.brush; j += 1) {
        const [u, v] = [x + i, y + j];
        if (u >= 0 && v >= 0 && u < width && v < height) hole.places[on ? "add" : "delete"](v * width + u);
      }
      redraw();
    };
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor(((event.clientX - box.left) / box.width) * width), Math.floor(((event.clientY - box.top) / box.height) * height)];
    };
    let painting = false;
    canvas.addEventListener("pointerdown", (event) => { painting = true; mark(...place(event), !event.shiftKey && !hole.erase); });
    canvas.addEventListener("pointermove", (event) => painting && mark(...place(event), !event.shiftKey && !hole.erase));
    window.addEventListener("pointerup", () => { painting = false; });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      const at = hole.cursor ?? Math.floor(height / 2) * width + Math.floor(width / 2);
      const [x, y] = [at % width, Math.floor(at / width)];
      if (step) hole.cursor = Math.min(height - 1, Math.max(0, y + step[1])) * width + Math.min(width - 1, Math.max(0, x + step[0]));
      else if (event.key === " ") { hole.cursor = at; mark(x, y, !hole.places.has(at)); } else return;
      event.preventDefault();
      redraw();
    });
    canvas.addEventListener("blur", () => { hole.cursor = null; redraw(); });
    redraw();
    const results = node("div", { id: "completions", "aria-live": "polite" });
    const complete = async () => {
      try {
        say("Completing …");
        const every = [...hole.places].sort((a, b) => a - b);
        const wanted = Array.from({ length: channels }, (_, c) => every.map((k) => c * width * height + k)).flat();
        const made = await ask("image", { row, seed: hole.seed, hole: wanted });
        say("");
        if (!made.completions) { say("Paint a hole first."); return; }
        showCode(made.code);
        const what = white === 1 ? "probability of white" : "expected brightness, from 0 to 1";
        const pixel = node("canvas", { class: "pixels", id: "pixels", role: "img", "aria-label": `${what} of each pixel` });
        paint(pixel, shape, made.probabilities);
        pixel.addEventListener("pointermove", (event) => {
          const [x, y] = [[event.offsetX, pixel.clientWidth, width], [event.offsetY, pixel.clientHeight, height]].map(([at, size, n]) => Math.min(n - 1, Math.max(0, Math.floor((at / size) * n))));
          tip(`line ${y + 1}, pixel ${x + 1}: ${made.probabilities[y * width + x].toFixed(3)}`, pixel);
        });
        pixel.addEventListener("pointerleave", () => tip(""));
        const lines = wanted.map((k) => node("tr", {}, ...[Math.floor((k % (width * height)) / width) + 1, (k % width) + 1, ...(channels > 1 ? [Math.floor(k / width / height) + 1] : [])]
          .map((n) => node("td", { class: "number", text: n })), node("td", { class: "number", text: made.probabilities[k].toFixed(3) })));
        const names = node("tr", {}, ...["line", "pixel", ...(channels > 1 ? ["channel"] : []), what].map((text) => node("th", { scope: "col", text })));
        const table = node("details", {}, node("summary", { text: "Pixels of the hole as a table" }), node("div", { class: "scroll" }, node("table", {}, names, ...lines)));
        results.replaceChildren(...notes(made),
          ...(made.log_prob === undefined ? [] : [node("p", { class: "answer" }, "log p of the rest ", node("b", { id: "log-p", text: made.log_prob.toFixed(3) }), " nats ", badge(made.badge),
            made.spread === undefined || made.spread === null ? "" : node("span", { class: "quiet", text: ` Its standard deviation over 8 orderings is ${made.spread.toFixed(2)}.` }))]),
          node("h2", { text: "Five completions" }), node("div", { class: "thumbs" }, ...made.completions.map((one, k) => picture(one, `Completion ${k + 1}`))),
          node("h2", {}, "Pixel probabilities given the rest ", badge(made.pixel_badge)), node("p", { class: "quiet", text: `Black is 0 and white is 1 (${what}); point at a pixel for its number.` }), pixel, table);
      } catch (error) { say(error.message); }
    };
    const number = node("input", { type: "number", id: "image-row", min: 0, max: (found.rows || 1) - 1, value: hole.row, onchange: (event) => { hole.row = Math.max(0, Math.floor(Number(event.target.value))); update(); } });
    const middle = () => {
      hole.places = new Set();
      for (let y = Math.floor(height / 3); y < Math.ceil((2 * height) / 3); y += 1) for (let x = Math.floor(width / 3); x < Math.ceil((2 * width) / 3); x += 1) hole.places.add(y * width + x);
      redraw();
    };
    const tools = node("div", { class: "tools" },
      ...(data ? [node("label", { for: "image-row", text: "Row" }), number] : []),
      node("button", { type: "button", text: data ? "Other draws" : "Another image", onclick: () => { hole.seed += 1; if (data) complete(); else update(); } }),
      node("button", { type: "button", text: "Hole in the middle", onclick: middle }),
      node("button", { type: "button", text: "No hole", onclick: () => { hole.places = new Set(); results.replaceChildren(); redraw(); } }),
      node("label", { for: "brush", text: "Brush" }),
      node("select", { id: "brush", onchange: (event) => { hole.brush = event.target.selectedIndex; } }, ...["1", "3", "5"].map((size, k) => node("option", { text: size, selected: k === hole.brush }))),
      node("label", {}, node("input", { type: "checkbox", id: "erase", checked: hole.erase, onchange: (event) => { hole.erase = event.target.checked; } }), " Erase"),
      node("button", { type: "button", class: "primary", id: "complete", text: "Complete", onclick: complete }));
    return [tools, node("p", { class: "quiet", text: "Paint a hole into the image (“Erase” or Shift removes it), then complete it." }), node("div", { class: "pair" }, node("div", {}, canvas), results)];
  },
};
