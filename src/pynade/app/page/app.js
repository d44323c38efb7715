// The explorer: columns that are asked for or given, and the views.

import { count, curve, legend, narrow, node } from "/charts.js";
import { views } from "/views.js";

const $ = (id) => document.getElementById(id);

export const state = { model: null, view: null, asked: [], given: new Map(), ranges: new Map(), token: 0 };

async function request(path, options) {
  const response = await fetch(path, options);
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Error("the server gave no answer that can be read");
  }
  if (!response.ok) throw new Error(answer.error || `the server answered with ${response.status}`);
  return answer;
}

export const ask = (name, body) => request(`/api/${name}`, {
  method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
});
export const send = (path, file) => request(`/api/${path}`, { method: "POST", headers: { "Content-Type": "text/csv" }, body: file });

export const givenValues = () => Object.fromEntries([...state.given].filter(([, value]) => value !== ""));

export function badge({ kind, text }) {
  return node("span", { class: `badge ${kind}`, text, title: MEANINGS[kind] });
}

const MEANINGS = {
  exact: "Exact: nothing was drawn at random.",
  orderings: "Exact for the average over so many orderings of the columns.",
  estimate: "An estimate: something was drawn at random.",
};

export function say(text) {
  $("status").textContent = text;
}

export function showCode(text) {
  $("code").hidden = !text;
  $("source").textContent = text || "";
}

export function download(name, text, kind = "text/csv") {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  const link = node("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function tip(text, target) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  const bounds = target.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(bounds.left, window.innerWidth - box.offsetWidth - 8))}px`;
  const below = bounds.bottom + 6;
  box.style.top = `${below + box.offsetHeight > window.innerHeight ? bounds.top - box.offsetHeight - 6 : below}px`;
}

// Runs a view's work; an older answer never replaces a newer one.
export async function update() {
  const token = (state.token += 1);
  const box = $("view");
  say("Computing …");
  try {
    const nodes = await views[state.view].show(() => token === state.token);
    if (token !== state.token) return;
    if (nodes) box.replaceChildren(...nodes);
    say("");
  } catch (error) {
    if (token !== state.token) return;
    box.replaceChildren(node("p", { class: "error", role: "alert", text: error.message }));
    showCode("");
    say("");
  }
}

let timer = 0;
function updateSoon() {
  clearTimeout(timer);
  timer = setTimeout(() => views[state.view].asks && update(), 120);
}

function stateOf(name) {
  return state.asked.includes(name) ? "asked" : state.given.has(name) ? "given" : "";
}

async function toggle(name) {
  const before = stateOf(name);
  if (before === "asked") {
    state.asked = state.asked.filter((other) => other !== name);
    await give(name);
  } else if (before === "given") {
    state.given.delete(name);
    drawGiven();
  } else {
    state.asked = [...state.asked, name].slice(-2);
  }
  drawChips();
  updateSoon();
}

// The slider of a column needs the range of its values, which the answer about it alone has.
async function give(name) {
  const column = state.model.columns.find((other) => other.name === name);
  if (column.levels.length) state.given.set(name, column.levels[0]);
  else {
    try {
      if (!state.ranges.has(name)) state.ranges.set(name, await ask("conditional", { asked: [name] }));
      const range = state.ranges.get(name);
      const middle = column.step ? range.middle : Number(range.middle.toPrecision(4));
      state.given.set(name, column.kind === "date" ? dateText(column, range.middle) : middle);
    } catch (error) {
      say(error.message);
      return;
    }
  }
  drawGiven();
}

function dateText(column, microseconds) {
  const text = new Date(microseconds / 1000).toISOString();
  return column.days && column.step ? text.slice(0, 10) : text.slice(0, 19);
}

function drawChips() {
  const query = $("search").value.trim().toLowerCase();
  const focused = document.activeElement?.dataset?.column;
  const shown = state.model.columns.filter((column) => column.name.toLowerCase().includes(query));
  shown.sort((a, b) => (stateOf(b.name) ? 1 : 0) - (stateOf(a.name) ? 1 : 0));
  $("counted").textContent = `(${shown.length === state.model.columns.length ? "" : `${shown.length} of `}${state.model.columns.length})`;
  $("chips").replaceChildren(...shown.slice(0, 400).map((column) => {
    const now = stateOf(column.name);
    const next = now === "asked" ? "give its value" : now === "given" ? "leave it out" : "ask about it";
    return node("li", {}, node("button", {
      type: "button", class: "chip", "data-state": now, "data-column": column.name, title: `${column.kind}: ${column.values}`,
      "aria-pressed": now ? "true" : "false", "aria-label": `${column.name} ${now ? `${now}, ` : ""}${column.kind}: ${next}`,
      onclick: () => toggle(column.name),
    }, `${column.name} `, node("small", { text: now || column.kind })));
  }));
  if (focused) $("chips").querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
}

function drawGiven() {
  $("given-title").hidden = state.given.size === 0;
  $("given").replaceChildren(...[...state.given.keys()].map((name, k) => {
    const column = state.model.columns.find((other) => other.name === name);
    const id = `given-${k}`;
    const set = (value) => {
      state.given.set(name, value);
      updateSoon();
    };
    const close = node("button", { type: "button", "aria-label": `Leave ${name} out`, text: "×", onclick: () => toggle(name) });
    const label = node("label", { for: id, text: name });
    if (column.levels.length) {
      const levels = [...column.levels, ...column.rare];
      const select = node("select", { id, class: "wide", onchange: (event) => set(levels[event.target.selectedIndex]) },
        ...levels.map((level) => node("option", { text: String(level), selected: level === state.given.get(name) })));
      return node("div", { class: "giving" }, label, close, select);
    }
    const range = state.ranges.get(name);
    const date = column.kind === "date";
    const [low, high] = [range.edges[0] + (column.step || 0), range.edges[range.edges.length - 1]];
    const step = column.step || (high - low) / 400;
    const value = state.given.get(name);
    const exact = node("input", {
      id, type: date ? (column.days && column.step ? "date" : "datetime-local") : "number", step: date ? null : column.step || "any",
      value: date ? value : String(Number(Number(value).toPrecision(8))), class: "wide", "data-given": name,
    });
    const slider = node("input", {
      type: "range", min: low, max: high, step, class: "wide", "aria-label": `${name}, slider`,
      value: date ? Date.parse(`${value}${value.length > 10 ? "Z" : ""}`) * 1000 : value, "aria-valuetext": String(value),
    });
    slider.addEventListener("input", () => {
      const number = Number(slider.value);
      const text = date ? dateText(column, number) : String(Number(number.toPrecision(6)));
      exact.value = text;
      slider.setAttribute("aria-valuetext", text);
      set(date ? text : Number(text));
    });
    exact.addEventListener("input", () => {
      if (exact.value === "") return;
      slider.value = date ? Date.parse(`${exact.value}${exact.value.length > 10 ? "Z" : ""}`) * 1000 : exact.value;
      set(date ? exact.value : Number(exact.value));
    });
    return node("div", { class: "giving" }, label, close, slider, exact);
  }));
}

function drawTabs() {
  const names = Object.keys(views).filter((name) => views[name].possible(state.model));
  const choose = (name, focus) => {
    state.view = name;
    for (const tab of $("tabs").children) {
      const selected = tab.dataset.view === name;
      tab.setAttribute("aria-selected", selected);
      tab.tabIndex = selected ? 0 : -1;
      if (selected && focus) tab.focus();
    }
    $("view").setAttribute("aria-labelledby", `tab-${name}`);
    $("columns").hidden = !views[name].asks;
    document.querySelector(".page").style.gridTemplateColumns = views[name].asks ? "" : "minmax(0, 1fr)";
    $("view").replaceChildren();
    showCode("");
    update();
  };
  $("tabs").replaceChildren(...names.map((name) => node("button", {
    type: "button", role: "tab", id: `tab-${name}`, "data-view": name, "aria-controls": "view", text: views[name].title,
    onclick: () => choose(name, false),
    onkeydown: (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) choose(names[(names.indexOf(name) + move + names.length) % names.length], true);
    },
  })));
  choose(state.model.image_shape ? "images" : "ask", false);
}

async function drawHeader() {
  const { model } = state;
  const lastPart = (path) => path.replace(/\/+$/, "").split("/").pop();
  $("model").textContent = `${model.model} · ${lastPart(model.run)}`;
  $("model").title = model.run;
  const rows = model.data ? `${count(model.data.rows)} rows of ${lastPart(model.data.name)}` : "no data beside it";
  const orderings = model.orderings ? `, scores over ${model.orderings} ordering${model.orderings > 1 ? "s" : ""}` : "";
  $("facts").textContent = `${count(model.columns.length)} columns, ${rows}${orderings}`;
  const chart = curve(model.history);
  if (chart) {
    $("curve").hidden = false;
    $("curve").replaceChildren(chart, node("figcaption", { class: "quiet", text: "log-likelihood by epoch: " },
      ...legend(["train", "training"], ["valid", "validation"]).children));
  }
  try {
    const answer = await request("/api/scores");
    $("scores").replaceChildren(...answer.scores.map((line) => node("div", { class: "score" },
      node("div", { class: "quiet", text: `${line.label} ` }),
      node("b", { text: `${line.mean.toFixed(2)}${line.stderr === null ? "" : ` ± ${line.stderr.toFixed(2)}`} nats ` }), badge(line.badge),
      node("div", { class: "quiet", text: line.where }))));
  } catch (error) {
    $("scores").replaceChildren(node("p", { class: "quiet", text: error.message }));
  }
}

async function start() {
  try {
    state.model = await request("/api/model");
  } catch (error) {
    $("view").replaceChildren(node("p", { class: "error", role: "alert", text: error.message }));
    return;
  }
  document.title = `${state.model.model} · pynade explore`;
  $("search").addEventListener("input", drawChips);
  $("copy").addEventListener("click", async () => {
    const text = $("source").textContent;
    try {
      await navigator.clipboard.writeText(text);
      say("The code is in the clipboard.");
    } catch {
      getSelection().selectAllChildren($("source"));
      say("The code is selected: copy it with Ctrl-C.");
    }
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && tip(""));
  narrow.addEventListener("change", updateSoon); // charts have another width
  if (!state.model.image_shape) state.asked = [state.model.columns[0].name];
  drawChips();
  drawTabs();
  drawHeader();
}

start();
