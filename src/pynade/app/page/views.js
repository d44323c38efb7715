// The views: Ask, Rows, Gaps, Samples, Images. Each gives the nodes to show.

import { ask, badge, download, givenValues, say, send, showCode, state, tip, update } from "/app.js";
import { axisText, bars, count, heat, histogram, legend, matrix, narrow, node, paint, percent, short } from "/charts.js";

const chartWidth = () => (narrow.matches ? 340 : 640);

const notes = (answer) => (answer.notes || []).map((text) => node("p", { class: "note", text }));

function summary(answer) {
  const line = node("p", { class: "answer", "aria-live": "polite" });
  if (answer.levels) line.append("likeliest ", node("b", { id: `mode-${answer.column}`, text: String(answer.mode) }));
  else {
    line.append("median ", node("b", { "data-number": "median", text: short(answer.median) }), ", 90 % between ",
      node("b", { "data-number": "low", text: short(answer.low) }), " and ", node("b", { "data-number": "high", text: short(answer.high) }));
    if (answer.mean !== undefined) line.append(", mean ", node("b", { "data-number": "mean", text: short(answer.mean) }));
  }
  line.append(" ", badge(answer.badge));
  return line;
}

function distribution(answer) {
  const label = `Distribution of ${answer.column}${answer.n_given ? ` given ${answer.n_given} columns` : ""}`;
  const other = answer.n_given ? answer.marginal : null;
  const chart = answer.levels
    ? bars(answer.levels, answer.p, other, { width: chartWidth(), label })
    : histogram(answer.edges, answer.p, other, { at: answer.at, step: answer.step, date: answer.kind === "date", width: chartWidth(), label });
  const before = other ? [[answer.levels ? "before" : "outline", "without what is given"]] : [];
  const range = answer.levels ? [] : [["interval", "90 % interval, with the median"]];
  const rest = answer.levels ? 1 - answer.p.reduce((total, p) => total + p, 0) : 0;
  const remainder = rest < 0.0005 ? [] : [node("p", { class: "quiet", text: `${percent(rest)} are left for values that no training row has.` })];
  return [chart, legend(["", other ? "with what is given" : "probability"], ...before, ...range), ...remainder];
}

function asTable(answer) {
  const end = (k) => axisText(answer.edges[k], answer.kind === "date");
  const names = answer.levels ? answer.levels.map(String) : answer.p.map((_, k) => `${end(k)} to ${end(k + 1)}`);
  const rows = names.map((name, k) => node("tr", {}, node("th", { scope: "row", text: name }), node("td", { class: "number", text: percent(answer.p[k]) }),
    node("td", { class: "number", text: percent(answer.marginal[k]) })));
  const first = answer.levels ? "level" : "above … up to";
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
    const answer = await ask("conditional", { asked: state.asked, given });
    if (!current()) return null;
    showCode(answer.code);
    const givenText = Object.entries(given).map(([name, value]) => `${name} = ${typeof value === "number" ? Number(value.toPrecision(6)) : value}`).join(", ");
    const title = node("h2", { text: `${state.asked.join(" and ")}${givenText ? ` given ${givenText}` : ""}` });
    if (answer.columns) {
      const distance = node("span", { class: "quiet", text: ` The two orderings are apart by ${answer.badge.spread.toFixed(3)} (total variation distance).` });
      return [title, ...notes(answer), node("p", {}, "density ", badge(answer.badge), distance), heat(answer, { width: Math.min(560, chartWidth()) }),
        legend(["", "density of the model"], ...(answer.points.length ? [["point", givenText ? "real rows near what is given" : "real rows"]] : [])),
        ...answer.columns.flatMap((column) => [node("h3", { text: column.column }), summary(column)])];
    }
    const spread = node("p", { class: "quiet", id: "spread" });
    if (givenText) {
      ask("spread", { asked: state.asked, given }).then((more) => {
        if (more.spread !== null) spread.textContent = `${more.k} orderings differ by at most ${more.spread.toFixed(3)} (total variation distance).`;
      }).catch((error) => { spread.textContent = error.message; });
    }
    const error = answer.badge.error ? [node("p", { class: "quiet", text: `Probabilities are ± ${answer.badge.error.toFixed(3)} at most, by the number of draws.` })] : [];
    return [title, ...notes(answer), summary(answer), ...error, spread, ...distribution(answer), asTable(answer)].filter(Boolean);
  },
};

// What was expected of a cell given the others of its row; asked when a cell is pointed at or has the focus.
function explain(cell, column, given, intro) {
  let text = null;
  const open = async () => {
    tip(text || intro, cell);
    if (text) return;
    try {
      const answer = await ask("conditional", { asked: [column], given });
      const top = (k) => answer.levels.map((level, j) => [answer.p[j], level]).sort((a, b) => b[0] - a[0]).slice(0, k);
      const expected = answer.levels
        ? top(3).map(([p, level]) => `${level} ${percent(p)}`).join(", ")
        : `${short(answer.median)}, 90 % between ${short(answer.low)} and ${short(answer.high)}`;
      text = `${intro} Expected: ${expected} (${answer.badge.text}).`;
    } catch (error) {
      text = `${intro} ${error.message}`;
    }
    cell.setAttribute("aria-label", `${cell.textContent}. ${text}`);
    if (document.activeElement === cell || cell.matches(":hover")) tip(text, cell);
  };
  cell.tabIndex = 0;
  cell.setAttribute("aria-label", `${cell.textContent}. ${intro}`);
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

const otherCells = (names, values, known, column) => Object.fromEntries(
  names.map((name, k) => [name, values[k], k]).filter(([, value, k]) => known[k] && k !== column && value !== null),
);

const page = { start: 0, lowest: true, n: 25 };
views.rows = {
  title: "Rows",
  possible: (model) => model.sorts_rows,
  async show() {
    const answer = await ask("rows", page);
    showCode(answer.code);
    const move = (by) => () => { page.start = Math.max(0, page.start + by); update(); };
    const order = node("select", { id: "order", onchange: (event) => { page.lowest = event.target.selectedIndex === 0; page.start = 0; update(); } },
      node("option", { text: "least likely first", selected: page.lowest }), node("option", { text: "likeliest first", selected: !page.lowest }));
    const tools = node("div", { class: "tools" }, node("label", { for: "order", text: "Order" }), order,
      node("button", { type: "button", text: "Previous", disabled: page.start === 0, onclick: move(-page.n) }),
      node("button", { type: "button", text: "Next", disabled: page.start + page.n >= answer.scored, onclick: move(page.n) }),
      node("span", { class: "quiet", text: `${count(answer.scored)} of ${count(answer.total)} rows were scored${answer.scored < answer.total ? ", a random part: all would take too long" : ""}.` }), badge(answer.badge));
    const hasSpread = answer.rows.some((line) => line.spread !== null);
    const head = node("tr", {}, ...["row", "log p", ...(hasSpread ? ["± orderings"] : []), ...answer.columns].map((text) => node("th", { scope: "col", text })));
    const lines = answer.rows.map((line) => node("tr", {}, node("th", { scope: "row", text: short(line.row) }),
      node("td", { class: "number", text: line.log_prob === null ? "–" : line.log_prob.toFixed(2) }), ...(hasSpread ? [node("td", { class: "number", text: line.spread === null ? "–" : line.spread.toFixed(2) })] : []),
      ...line.cells.map((value, k) => {
        const cell = node("td", { text: short(value), class: value === null ? "missing" : typeof value });
        const nats = line.surprise?.[k];
        if (nats === null || nats === undefined) return cell;
        cell.style.backgroundColor = `rgba(var(--odd), ${Math.min(0.75, Math.max(0, nats - 1.5) / 9).toFixed(2)})`;
        explain(cell, answer.columns[k], otherCells(answer.columns, line.cells, line.known, k), `A value at least as odd has probability ${percent(Math.exp(-nats))}.`);
        return cell;
      })));
    const spread = hasSpread ? "log p in nats, ± its standard deviation over 8 orderings. " : "log p in nats. ";
    const hint = spread + (answer.rows.some((line) => line.surprise) ? "Cells are shaded by their surprise given the rest of their row; point at one, or move to it with Tab and the arrow keys, for what was expected." : "");
    return [tools, ...notes(answer), node("p", { class: "quiet", text: hint }), node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rows by log p" }, withArrows(node("table", {}, head, ...lines)))];
  },
};

const gaps = { file: null, draws: 5, answer: null };
views.gaps = {
  title: "Gaps",
  possible: (model) => !model.image_shape,
  async show() {
    const takeFile = async (file) => {
      if (!file) return;
      if (file.size > state.model.limits.bytes) { say(`The file has more than ${count(state.model.limits.bytes)} bytes.`); return; }
      gaps.file = file;
      gaps.answer = null;
      await update();
    };
    const choose = node("input", { type: "file", id: "file", accept: ".csv,text/csv", onchange: (event) => takeFile(event.target.files[0]) });
    const drop = node("div", {
      class: "drop", ondragover: (event) => { event.preventDefault(); drop.classList.add("over"); }, ondragleave: () => drop.classList.remove("over"),
      ondrop: (event) => { event.preventDefault(); drop.classList.remove("over"); takeFile(event.dataTransfer.files[0]); },
    }, node("label", { for: "file", text: `Drop ${gaps.file ? "another" : "a"} CSV file with gaps here, or choose one: ` }), choose,
    node("p", { class: "quiet", text: `At most ${count(state.model.limits.rows)} rows; it stays on this server's machine and is not kept.` }));
    if (!gaps.file) { showCode(state.model.code); return [drop]; }
    const answer = gaps.answer || (gaps.answer = await send("fill", gaps.file));
    showCode(answer.code);
    const stem = gaps.file.name.replace(/\.csv$/i, "");
    const drawCount = node("input", { type: "number", id: "draws", min: 1, max: 20, value: gaps.draws, onchange: (event) => { gaps.draws = Number(event.target.value); } });
    const tools = node("div", { class: "tools" },
      node("span", { id: "filled" }, node("b", { text: count(answer.filled) }), ` gaps in ${count(answer.n)} rows of ${gaps.file.name} filled `), badge(answer.badge),
      node("button", { type: "button", class: "primary", id: "download", text: "Download the filled table", onclick: () => download(`${stem}-filled.csv`, answer.csv) }),
      node("label", { for: "draws", text: "Draws" }), drawCount,
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
    const head = node("tr", {}, ...answer.columns.map((text) => node("th", { scope: "col", text })));
    const lines = answer.rows.map((cells, i) => node("tr", {}, ...cells.map((value, k) => {
      const filled = answer.marks[i].includes(k);
      const cell = node("td", { text: short(value), class: value === null ? "missing" : `${typeof value}${filled ? " filled" : ""}` });
      if (filled) explain(cell, answer.columns[k], otherCells(answer.columns, cells, answer.known.map((isColumn, j) => isColumn && !answer.marks[i].includes(j)), k), "Filled.");
      return cell;
    })));
    const more = answer.n > answer.rows.length ? [node("p", { class: "quiet", text: `The first ${answer.rows.length} rows are shown.` })] : [];
    return [drop, ...notes(answer), tools, ...more, node("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Filled table" }, withArrows(node("table", {}, head, ...lines)))];
  },
};

const drawn = { n: 1000, seed: 0 };
views.samples = {
  title: "Samples",
  asks: true,
  possible: () => true,
  async show() {
    const answer = await ask("samples", { ...drawn, given: givenValues() });
    showCode(answer.code);
    const redraw = node("button", { type: "button", text: "Draw again", onclick: () => { drawn.seed += 1; update(); } });
    if (answer.images) {
      const side = (name, title) => (answer.images[name] ? [node("h3", { text: title }), node("div", { class: "thumbs" }, ...answer.images[name].map((pixels, k) => picture(pixels, `${title} ${k + 1}`))),
        ...(answer.images[name].length ? [] : [node("p", { class: "quiet", text: "No real image has these pixels." })])] : []);
      return [node("div", { class: "tools" }, redraw, badge(answer.badge)), ...side("sampled", "Sampled"), ...side("real", state.given.size ? "Real, near what is given" : "Real")];
    }
    const downloadButton = node("button", { type: "button", text: "Download the draws", onclick: () => download("draws.csv", answer.csv) });
    const comparison = answer.real_rows === null ? "There are no data to compare with." : `Against ${count(answer.real_rows)} real rows${state.given.size ? " near what is given" : ""}.`;
    const warning = answer.real_rows !== null && answer.real_rows < 30 ? [node("p", { class: "note", text: "So few real rows say little." })] : [];
    const matrices = Object.entries(answer.correlations).map(([side, rows]) => {
      const canvas = node("canvas", { class: "matrix", role: "img", "aria-label": `Correlations, ${side}` });
      matrix(canvas, rows);
      canvas.addEventListener("mousemove", (event) => {
        const [j, i] = [event.offsetX / canvas.clientWidth, event.offsetY / canvas.clientHeight].map((v) => Math.min(rows.length - 1, Math.max(0, Math.floor(v * rows.length))));
        tip(`${answer.numbers[i]}, ${answer.numbers[j]}: ${short(rows[i][j])}`, canvas);
      });
      canvas.addEventListener("mouseleave", () => tip(""));
      return node("div", {}, node("h3", { text: `Correlations, ${side}` }), canvas);
    });
    let correlationText = [];
    if (answer.correlations.real && answer.correlations.sampled) {
      const { real, sampled } = answer.correlations;
      const differences = real.flatMap((line, i) => line.map((r, j) => [i < j && r !== null && sampled[i][j] !== null ? Math.abs(r - sampled[i][j]) : NaN, i, j])).filter(([v]) => v === v);
      const [most, i, j] = differences.reduce((a, b) => (b[0] > a[0] ? b : a), [-1]);
      const mean = differences.reduce((total, [v]) => total + v, 0) / differences.length;
      if (differences.length) correlationText = [node("p", { text: `Correlations of ${answer.numbers.length} columns of numbers differ by ${mean.toFixed(3)} on average, ${most.toFixed(3)} at most (${answer.numbers[i]} and ${answer.numbers[j]}).` })];
    }
    const real = answer.real_rows === null ? [] : [["before", (column) => column.levels], ["outline", (column) => !column.levels]].filter(([, test]) => answer.columns.some(test)).map(([kind]) => kind);
    const charts = answer.columns.filter((column) => !state.given.has(column.column)).slice(0, 300).map((column) => node("div", {}, node("h3", { text: column.column }), column.levels
      ? bars(column.levels, column.sampled, column.real, { most: 8, width: 300, label: `Levels of ${column.column}, sampled and real` })
      : histogram(column.edges, column.sampled, column.real, { step: column.step, width: 300, height: 130, date: column.kind === "date", label: `${column.column}, sampled and real` })));
    return [node("div", { class: "tools" }, redraw, downloadButton, badge(answer.badge), node("span", { class: "quiet", text: comparison })), ...notes(answer), ...warning,
      legend(["", "sampled"], ...real.map((kind) => [kind, "real"])), node("div", { class: "small" }, ...charts),
      ...(matrices.length ? [node("h2", { text: "Correlations" }), ...correlationText, node("p", { class: "quiet", text: `Blue above 0, red below, in the order: ${answer.numbers.slice(0, 40).join(", ")}` }), node("div", { class: "pair" }, ...matrices)] : [])];
  },
};

function picture(pixels, label) {
  const canvas = node("canvas", { class: "thumb", role: "img", "aria-label": label });
  paint(canvas, state.model.image_shape, pixels.map((v) => v / state.model.white));
  return canvas;
}

const hole = { row: 0, seed: 0, pixels: new Set(), cursor: null, brush: 1, erase: false };
views.images = {
  title: "Images",
  possible: (model) => model.image_shape !== null,
  async show() {
    const { image_shape: shape, white, data } = state.model;
    const [channels, height, width] = shape.length === 3 ? shape : [1, ...shape];
    const row = data ? hole.row : null;
    const answer = await ask("image", { row, seed: hole.seed });
    showCode(answer.code);
    const canvas = node("canvas", { class: "paint", id: "paint", tabindex: 0, role: "application", "aria-label": "The image. Paint a hole with the pointer, or with the arrow keys and Space." });
    const redraw = () => paint(canvas, shape, answer.pixels.map((v) => v / white), hole.pixels, hole.cursor);
    const mark = (x, y, on) => {
      for (let i = -hole.brush; i <= hole.brush; i += 1) for (let j = -hole.brush; j <= hole.brush; j += 1) {
        const [u, v] = [x + i, y + j];
        if (u >= 0 && v >= 0 && u < width && v < height) hole.pixels[on ? "add" : "delete"](v * width + u);
      }
      redraw();
    };
    const pixelAt = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor(((event.clientX - box.left) / box.width) * width), Math.floor(((event.clientY - box.top) / box.height) * height)];
    };
    let painting = false;
    canvas.addEventListener("pointerdown", (event) => { painting = true; mark(...pixelAt(event), !event.shiftKey && !hole.erase); });
    canvas.addEventListener("pointermove", (event) => painting && mark(...pixelAt(event), !event.shiftKey && !hole.erase));
    window.addEventListener("pointerup", () => { painting = false; });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      const at = hole.cursor ?? Math.floor(height / 2) * width + Math.floor(width / 2);
      const [x, y] = [at % width, Math.floor(at / width)];
      if (step) hole.cursor = Math.min(height - 1, Math.max(0, y + step[1])) * width + Math.min(width - 1, Math.max(0, x + step[0]));
      else if (event.key === " ") { hole.cursor = at; mark(x, y, !hole.pixels.has(at)); } else return;
      event.preventDefault();
      redraw();
    });
    canvas.addEventListener("blur", () => { hole.cursor = null; redraw(); });
    redraw();
    const results = node("div", { id: "completions", "aria-live": "polite" });
    const complete = async () => {
      try {
        say("Completing …");
        const marked = [...hole.pixels].sort((a, b) => a - b);
        const pixels = Array.from({ length: channels }, (_, c) => marked.map((k) => c * width * height + k)).flat();
        const completion = await ask("image", { row, seed: hole.seed, hole: pixels });
        say("");
        if (!completion.completions) { say("Paint a hole first."); return; }
        showCode(completion.code);
        const meaning = white === 1 ? "probability of white" : "expected brightness, from 0 to 1";
        const pixel = node("canvas", { class: "pixels", id: "pixels", role: "img", "aria-label": `${meaning} of each pixel` });
        paint(pixel, shape, completion.probabilities);
        pixel.addEventListener("pointermove", (event) => {
          const [x, y] = [[event.offsetX, pixel.clientWidth, width], [event.offsetY, pixel.clientHeight, height]].map(([at, size, n]) => Math.min(n - 1, Math.max(0, Math.floor((at / size) * n))));
          tip(`line ${y + 1}, pixel ${x + 1}: ${completion.probabilities[y * width + x].toFixed(3)}`, pixel);
        });
        pixel.addEventListener("pointerleave", () => tip(""));
        const lines = pixels.map((k) => node("tr", {}, ...[Math.floor((k % (width * height)) / width) + 1, (k % width) + 1, ...(channels > 1 ? [Math.floor(k / width / height) + 1] : [])]
          .map((n) => node("td", { class: "number", text: n })), node("td", { class: "number", text: completion.probabilities[k].toFixed(3) })));
        const names = node("tr", {}, ...["line", "pixel", ...(channels > 1 ? ["channel"] : []), meaning].map((text) => node("th", { scope: "col", text })));
        const table = node("details", {}, node("summary", { text: "Pixels of the hole as a table" }), node("div", { class: "scroll" }, node("table", {}, names, ...lines)));
        results.replaceChildren(...notes(completion),
          ...(completion.log_prob === undefined ? [] : [node("p", { class: "answer" }, "log p of the rest ", node("b", { id: "log-p", text: completion.log_prob.toFixed(3) }), " nats ", badge(completion.badge),
            completion.spread === undefined || completion.spread === null ? "" : node("span", { class: "quiet", text: ` Its standard deviation over 8 orderings is ${completion.spread.toFixed(2)}.` }))]),
          node("h2", { text: "Five completions" }), node("div", { class: "thumbs" }, ...completion.completions.map((image, k) => picture(image, `Completion ${k + 1}`))),
          node("h2", {}, "Pixel probabilities given the rest ", badge(completion.pixel_badge)), node("p", { class: "quiet", text: `Black is 0 and white is 1 (${meaning}); point at a pixel for its number.` }), pixel, table);
      } catch (error) { say(error.message); }
    };
    const rowInput = node("input", { type: "number", id: "image-row", min: 0, max: (answer.rows || 1) - 1, value: hole.row, onchange: (event) => { hole.row = Math.max(0, Math.floor(Number(event.target.value))); update(); } });
    const holeInMiddle = () => {
      hole.pixels = new Set();
      for (let y = Math.floor(height / 3); y < Math.ceil((2 * height) / 3); y += 1) for (let x = Math.floor(width / 3); x < Math.ceil((2 * width) / 3); x += 1) hole.pixels.add(y * width + x);
      redraw();
    };
    const tools = node("div", { class: "tools" },
      ...(data ? [node("label", { for: "image-row", text: "Row" }), rowInput] : []),
      node("button", { type: "button", text: data ? "Other draws" : "Another image", onclick: () => { hole.seed += 1; if (data) complete(); else update(); } }),
      node("button", { type: "button", text: "Hole in the middle", onclick: holeInMiddle }),
      node("button", { type: "button", text: "No hole", onclick: () => { hole.pixels = new Set(); results.replaceChildren(); redraw(); } }),
      node("label", { for: "brush", text: "Brush" }),
      node("select", { id: "brush", onchange: (event) => { hole.brush = event.target.selectedIndex; } }, ...["1", "3", "5"].map((size, k) => node("option", { text: size, selected: k === hole.brush }))),
      node("label", {}, node("input", { type: "checkbox", id: "erase", checked: hole.erase, onchange: (event) => { hole.erase = event.target.checked; } }), " Erase"),
      node("button", { type: "button", class: "primary", id: "complete", text: "Complete", onclick: complete }));
    return [tools, node("p", { class: "quiet", text: "Paint a hole into the image (“Erase” or Shift removes it), then complete it." }), node("div", { class: "pair" }, node("div", {}, canvas), results)];
  },
};
