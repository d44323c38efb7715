// Charts in SVG and canvas, without any library.

const SVG = "http://www.w3.org/2000/svg";

export const narrow = matchMedia("(max-width: 700px)"); // as in style.css

export function node(tag, attributes = {}, ...children) {
  const element = attributes.svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "svg" || value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const draw = (tag, attributes, ...children) => node(tag, { ...attributes, svg: true }, ...children);

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  return String(Number(value.toPrecision(4)));
}

export const count = (number) => number.toLocaleString("en");

export function percent(p) {
  return p === 0 || p >= 0.001 ? `${(100 * p).toFixed(1)}\u00a0%` : `${(100 * p).toPrecision(2)}\u00a0%`;
}

// Numbers of an axis as text; dates are microseconds since 1970.
export function axisText(number, date) {
  if (!date) return short(number);
  const moment = new Date(number / 1000);
  return Number.isNaN(moment.getTime()) ? "" : moment.toISOString().replace(/T00:00:00.*|:\d\d\.\d+Z$/, "");
}

function frame(width, height, label) {
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

// Round numbers across a range, at most about so many; of dates, even parts of the range.
function roundNumbers(low, high, date, most, least = 0) {
  if (date || !(high > low)) return Array.from({ length: most }, (_, k) => low + ((high - low) * k) / (most - 1));
  const raw = Math.max(least, (high - low) / most);
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = ten * [1, 2, 5, 10].find((factor) => factor * ten >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(12)));
}

function ticks(svg, low, high, y, x, date, most, least) {
  const [left, right] = [x(low), x(high)];
  for (const value of roundNumbers(low, high, date, most, least)) {
    const at = x(value);
    const anchor = at - left < 18 ? "start" : right - at < 18 ? "end" : "middle";
    svg.append(draw("text", { x: at, y, "text-anchor": anchor, text: axisText(value, date) }));
  }
}

// A histogram: probabilities p of ranges between ends, over a dashed outline of other probabilities.
// A range has the values above its first end up to its last; those of a lattice are drawn half a step further.
export function histogram(ends, p, other, { at = null, step = 0, date = false, width = 640, height = 240, label = "" } = {}) {
  const edges = ends.map((end) => end + step / 2);
  const svg = frame(width, height, label);
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const x = (v) => 8 + ((v - low) / (high - low || 1)) * (width - 16);
  const densities = (probabilities) => probabilities.map((v, k) => v / Math.max(1e-300, edges[k + 1] - edges[k]));
  const [dense, before] = [densities(p), other ? densities(other) : []];
  const most = Math.max(...dense, ...before, 1e-300);
  const y = (v) => height - 22 - (v / most) * (height - 34);
  if (at) {
    const [from, to] = [Math.max(low, at[0] - step / 2), Math.min(high, at[2] + step / 2)];
    svg.append(draw("rect", { class: "interval", x: x(from), y: 4, width: Math.max(1, x(to) - x(from)), height: height - 26 }));
  }
  dense.forEach((v, k) => svg.append(draw("rect", {
    class: "p", x: x(edges[k]), y: y(v), width: Math.max(0.5, x(edges[k + 1]) - x(edges[k]) - 0.6), height: height - 22 - y(v),
  })));
  if (other) {
    const path = before.map((v, k) => `${k ? "L" : "M"}${x(edges[k]).toFixed(1)} ${y(v).toFixed(1)}H${x(edges[k + 1]).toFixed(1)}`);
    svg.append(draw("path", { class: "outline", d: path.join("") }));
  }
  if (at) svg.append(draw("line", { class: "median", x1: x(at[1]), x2: x(at[1]), y1: 4, y2: height - 22 }));
  svg.append(draw("line", { class: "axis", x1: 8, x2: width - 8, y1: height - 22, y2: height - 22 }));
  ticks(svg, low, high, height - 7, x, date, width < 400 ? 6 : 9, step);
  return svg;
}

// Bars of levels: a probability each, with another one below it.
export function bars(levels, p, other, { most = 30, width = 640, label = "" } = {}) {
  let shown = levels.map((_, k) => k);
  if (shown.length > most) shown = shown.sort((a, b) => p[b] - p[a]).slice(0, most);
  const row = other ? 26 : 20;
  const svg = frame(width, shown.length * row + 6, label);
  const side = width < 400 ? 100 : 170;
  const longest = Math.max(...shown.map((k) => Math.max(p[k], other ? other[k] : 0)), 1e-300);
  const size = (v) => (v / longest) * (width - side - 62);
  shown.forEach((k, line) => {
    const y = line * row + 4;
    const name = String(levels[k]);
    const chars = width < 400 ? 12 : 24;
    svg.append(
      draw("text", { x: side - 6, y: y + 12, "text-anchor": "end", text: name.length > chars ? `${name.slice(0, chars - 1)}…` : name }),
      draw("rect", { class: "p", x: side, y, width: size(p[k]), height: 12 }),
      draw("text", { x: side + size(p[k]) + 5, y: y + 11, text: percent(p[k]) }),
    );
    if (other) svg.append(draw("rect", { class: "before", x: side, y: y + 13, width: size(other[k]), height: 6 }));
  });
  return svg;
}

// Places on an axis: of levels, or of numbers between the ends of ranges.
function scale(values, column, from, to) {
  if (column.levels) {
    const step = (to - from) / values.length;
    const positions = new Map(values.map((v, k) => [String(v), k]));
    return { at: (v) => (positions.has(String(v)) ? from + step * (positions.get(String(v)) + 0.5) : NaN), edge: (k) => from + step * k, n: values.length, size: () => 1 };
  }
  const edges = values.map((end) => end + column.step / 2);
  const [low, high] = [edges[0], edges[edges.length - 1]];
  const at = (v) => from + ((v - low) / (high - low || 1)) * (to - from);
  return { at, low, high, edge: (k) => at(edges[k]), n: edges.length - 1, size: (k) => edges[k + 1] - edges[k] || 1 };
}

// The density of two columns from the probabilities of the cells of a grid, with real rows over it.
export function heat(answer, { width = 560, height = 430 } = {}) {
  const [a, b] = answer.columns;
  const svg = frame(width, height, `Joint density of ${a.column} and ${b.column}`);
  svg.setAttribute("class", "joint");
  const left = b.levels ? 122 : 76;
  const xs = scale(answer.x_at, a, left, width - 8);
  const ys = scale(answer.y_at, b, height - 40, 8);
  const density = answer.p.map((line, i) => line.map((p, j) => p / xs.size(i) / ys.size(j)));
  const most = Math.max(...density.flat(), 1e-300);
  density.forEach((line, i) => line.forEach((v, j) => {
    const [x0, x1, y0, y1] = [xs.edge(i), xs.edge(i + 1), ys.edge(j + 1), ys.edge(j)];
    if (v / most > 0.0004) svg.append(draw("rect", {
      class: "cell", x: x0, y: y0, width: Math.max(0.5, x1 - x0), height: Math.max(0.5, y1 - y0), "fill-opacity": Math.sqrt(v / most).toFixed(3),
    }));
  }));
  answer.points.forEach(([u, v], k) => {
    const jitter = (levels, n) => (levels ? (((k * n) % 17) - 8) * 0.9 : 0);
    const [x, y] = [xs.at(u) + jitter(a.levels, 7), ys.at(v) + jitter(b.levels, 5)];
    if (x > left && x < width - 8 && y > 8 && y < height - 40) svg.append(draw("circle", { class: "point", cx: x, cy: y, r: 2 }));
  });
  if (a.levels) answer.x_at.slice(0, 12).forEach((v) => svg.append(draw("text", { x: xs.at(v), y: height - 24, "text-anchor": "middle", text: String(v).slice(0, 10) })));
  else ticks(svg, xs.low, xs.high, height - 24, xs.at, a.kind === "date", a.kind === "date" ? 4 : 9, a.step);
  const on_y = b.levels ? answer.y_at : roundNumbers(ys.low, ys.high, b.kind === "date", 7, b.step);
  on_y.forEach((v) => svg.append(draw("text", {
    x: left - 5, y: Math.max(14, ys.at(v) + 4), "text-anchor": "end", text: b.levels ? String(v).slice(0, 15) : axisText(v, b.kind === "date"),
  })));
  svg.append(draw("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle", text: a.column }));
  svg.append(draw("text", { x: -(height - 32) / 2, y: 12, transform: "rotate(-90)", "text-anchor": "middle", text: b.column }));
  return svg;
}

export function legend(...entries) {
  return node("p", { class: "legend quiet" }, ...entries.map(([kind, text]) => node("span", {}, node("i", { class: kind }), text)));
}

// Training curves: log-likelihood by epoch.
export function curve(history, { width = 170, height = 62 } = {}) {
  const values = history.flatMap((line) => [line.train, line.valid]).filter((v) => typeof v === "number").sort((u, v) => u - v);
  if (history.length < 2 || !values.length) return null;
  const [low, high] = [values[Math.floor(values.length * 0.06)], values[values.length - 1]];
  const svg = frame(width, height, `Training curve: log-likelihood of ${history.length} epochs, at most ${short(high)} nats`);
  for (const name of ["train", "valid"]) {
    const points = history.map((line, k) => [k, line[name]]).filter(([, v]) => typeof v === "number");
    const position = ([k, v]) => `${4 + (k / (history.length - 1)) * (width - 8)},${height - 4 - (Math.max(0, v - low) / (high - low || 1)) * (height - 8)}`;
    svg.append(draw("polyline", { class: `curve ${name}`, points: points.map(position).join(" ") }));
  }
  return svg;
}

// Pixels (channels, height, width) from 0 to 1 on a canvas, those of a hole marked.
export function paint(canvas, shape, pixels, hole = null, cursor = null) {
  const [channels, height, width] = shape.length === 3 ? shape : [1, ...shape];
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * k + c] = 255 * pixels[(channels === 1 ? 0 : c % channels) * width * height + k];
    image.data[4 * k + 3] = 255;
    if (hole && hole.has(k)) image.data.set([214, 120, 40, 255], 4 * k);
    if (cursor === k) image.data.set([60, 140, 230, 255], 4 * k);
  }
  context.putImageData(image, 0, 0);
}

// A matrix of correlations on a canvas: blue above 0, red below.
export function matrix(canvas, rows) {
  canvas.width = canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(rows.length, rows.length);
  rows.flat().forEach((r, k) => {
    const end = r >= 0 ? [40, 95, 160] : [185, 60, 60];
    image.data.set([...end.map((v) => Math.round(245 + (v - 245) * Math.abs(r ?? 0))), 255], 4 * k);
  });
  context.putImageData(image, 0, 0);
}
