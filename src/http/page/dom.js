// Makes elements, tables and texts. All text passes `shown` on its way to the screen, and nothing here or elsewhere
// parses HTML: what a node, a job or an operator has named stays text. It knows no view and asks nobody.

const SVG = "http://www.w3.org/2000/svg";
// What commands a screen or reorders what is read on it. Joiners stay: words of some languages need them.
const COMMANDS = /(?![\t\n\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
// Marks are drawn one above the other, without an end.
const STACKED = /(\p{M}{3})\p{M}+/gu;
// Rows of one table: with more of them, a filter finds what scrolling does not.
const MOST_ROWS = 500;

export const shown = text => String(text).replace(COMMANDS, "\ufffd").replace(STACKED, "$1");

// An element with its attributes and children. `on…` are listeners; false, null and undefined leave something out.
export const el = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);

function build(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (key === "value") element.value = value;
    else if (key === "title" || key === "aria-label") element.setAttribute(key, shown(value));
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  fill(element, children);
  return element;
}

// Replaces what an element contains.
export function fill(element, ...children) {
  const given = children.flat(Infinity).filter(child => child !== false && child != null);
  element.replaceChildren(...given.map(child => (child instanceof Node ? child : shown(child))));
}

// The same for what is looked at again and again: what has not changed stays, and so do the focus and the place.
export function refill(element, ...children) {
  const wanted = element.cloneNode(false);
  fill(wanted, ...children);
  if (wanted.isEqualNode(element)) return;
  const places = () => [...element.querySelectorAll("a, button, [tabindex]")];
  const [at, top] = [places().indexOf(document.activeElement), element.scrollTop];
  element.replaceChildren(...wanted.childNodes);
  element.scrollTop = top;
  if (at >= 0) places()[at]?.focus({ preventScroll: true });
}

// Somebody's name: letters of either direction stay within it, and a long one is cut on the screen alone.
export const named = text => el("bdi", { class: "name", title: text }, text);

export const link = (route, ...children) => el("a", { href: route }, ...children);
export const nodeLink = name => link(`#/mesh/${encodeURIComponent(name)}`, named(name));
export const jobLink = id => link(`#/jobs/${id}`, id);
export const savedLink = name => link(`#/saved/${encodeURIComponent(name)}`, named(name));

// A list of names, of which the first ones are shown.
export function names(all, most = 8) {
  const parts = all.slice(0, most).flatMap((name, at) => [at > 0 && ", ", named(name)]);
  return all.length > most ? [...parts, ` and ${all.length - most} more`] : parts;
}

// Terms and what is to say of them; those of which nothing is to say are left out.
export function facts(pairs) {
  const said = pairs.filter(([, what]) => what != null && what !== false && what.length !== 0);
  return el("dl", {}, said.map(([term, what]) => el("div", {}, el("dt", {}, term), el("dd", {}, what))));
}

export const state = (word, kind) => el("span", { class: `state ${kind}` }, word);

// How much of a capacity is used.
export function usage(used, capacity, label) {
  const bar = el("meter", { min: 0, max: Math.max(capacity, 1), value: Math.min(used, capacity), "aria-label": label });
  return el("span", { class: "usage" }, capacity > 0 && bar, `${used} of ${capacity}`);
}

// Elements for values by their keys, in the order of these; those that are there stay, and so does the focus.
export function keyed(before, values, key, make, parent) {
  const focused = document.activeElement;
  const entry = value => Object.assign(before.get(key(value)) ?? { element: make() }, { value });
  const after = new Map(values.map(value => [key(value), entry(value)]));
  for (const [old, { element }] of before) if (!after.has(old)) element.remove();
  let next = parent.firstElementChild;
  for (const { element } of after.values()) {
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  // Whoever is moved loses the focus.
  if (focused !== document.activeElement && focused?.isConnected) focused.focus();
  return after;
}

// A table that is shown again and again: a row that is there stays the same element, and who has the focus keeps it.
export class Table {
  #rows = new Map();
  #body = el("tbody");
  #note = el("p", { class: "note" });

  // Columns are {head, cell, wide}; wide ones are left out on a narrow screen.
  constructor(caption, columns, key) {
    this.columns = columns;
    this.key = key;
    const heads = columns.map(({ head, wide }) => el("th", { scope: "col", class: wide && "wide" }, head));
    const table = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), this.#body);
    const box = el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": caption }, table);
    this.element = el("div", {}, box, this.#note);
  }

  show(all, nothing = "There are none.") {
    this.#rows = keyed(this.#rows, all.slice(0, MOST_ROWS), this.key, () => el("tr"), this.#body);
    const cells = one => this.columns.map(({ cell, wide }) => el("td", { class: wide && "wide" }, cell(one)));
    for (const { element, value } of this.#rows.values()) refill(element, cells(value));
    const more = all.length - MOST_ROWS;
    fill(this.#note, all.length === 0 && nothing, more > 0 && `${more} more rows are not shown: narrow the filter.`);
  }
}

// What a filter or a search is typed into.
export const searchForm = (submit, ...children) =>
  el("form", { class: "filter", role: "search", onsubmit: submit }, children);
const usual = { autocomplete: "off", spellcheck: "false" };
export const searchInput = (value, more) => el("input", { type: "search", name: "search", ...usual, value, ...more });
export const text = (name, more) => el("input", { name, ...usual, ...more });
export const lines = (name, more) => el("textarea", { name, rows: 6, ...usual, ...more });
export const box = (name, words, more) =>
  el("label", { class: "check" }, el("input", { type: "checkbox", name, value: "true", ...more }), words);

// Milliseconds after the last letter of a search.
const TYPED = 300;

// Tells when somebody has typed and pauses, if it is still to be seen.
export function onTyped(input, tell) {
  let typing = null;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => input.isConnected && tell(), TYPED);
  });
}

// A field with its label, and what is to say about it.
export function field(label, input, note) {
  const labelled = el("label", {}, el("span", {}, label), input);
  if (!note) return labelled;
  input.setAttribute("aria-describedby", `about-${input.name}`);
  return el("div", {}, labelled, el("small", { id: `about-${input.name}` }, note));
}

// A moment, as a person says it.
export function moment(text) {
  if (!text) return null;
  const [then, now] = [new Date(text), new Date()];
  const days = Math.round((new Date(now).setHours(0, 0, 0, 0) - new Date(then).setHours(0, 0, 0, 0)) / 86_400_000);
  const year = then.getFullYear() === now.getFullYear() ? {} : { year: "numeric" };
  const day = ["today", "yesterday"][days] ?? then.toLocaleDateString([], { day: "numeric", month: "short", ...year });
  const clock = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return el("time", { datetime: text, title: then.toLocaleString() }, `${day} ${clock}`);
}

// Seconds, in the two largest of their units.
export function span(seconds) {
  if (seconds == null) return "";
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [Math.floor(seconds % 60), "s"]];
  const first = parts.findIndex(([number]) => number > 0);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).filter(([number]) => number > 0).map(part => part.join(" ")).join(" ");
}

export function size(bytes) {
  let [number, unit] = [bytes, 0];
  for (; number >= 1024 && unit < 5; unit += 1) number /= 1024;
  return unit === 0 ? `${bytes} B` : `${number.toFixed(1)} ${["", "K", "M", "G", "T", "P"][unit]}iB`;
}

export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

// Tells what was done, or why it was not, where a screen reader hears it.
export function say(text, isError = false) {
  const place = document.getElementById("said");
  place.className = isError ? "error" : "";
  fill(place, text);
}

// A form that changes something: it cannot be sent twice, and an error stands above the field that it names, which has
// the focus. A password stays in its field until the node has it, and no longer.
export function onSend(form, send) {
  const [wrong, button] = [form.querySelector(".error"), form.querySelector("[type=submit]")];
  form.addEventListener("submit", async event => {
    event.preventDefault();
    fill(wrong);
    button.disabled = true;
    const why = await send(Object.fromEntries(new FormData(form))).catch(error => error.message);
    button.disabled = false;
    if (why) {
      const at = [...form.querySelectorAll("[name]")].find(one => why.split(/[ :,]+/).includes(one.name)) ?? button;
      at.closest("form > *").before(wrong);
      fill(wrong, why);
      at.focus();
      wrong.scrollIntoView({ block: "nearest" });
    } else for (const one of form.querySelectorAll("[type=password]")) one.value = "";
  });
}

// Goes to a job that was made, which has no number yet while the store is away.
export function goToJob({ id, unit }) {
  if (id == null) say(`The store is away: unit ${unit} becomes a job as soon as it is back.`);
  else location.hash = `#/jobs/${id}`;
}

// A button that changes something: it cannot be pressed twice, and an error is told.
export function action(label, change, question) {
  const press = async ({ currentTarget: button }) => {
    if (question && !window.confirm(shown(question))) return;
    button.disabled = true;
    try {
      say(await change());
    } catch (error) {
      say(`${label}: ${error.message}`, true);
    }
    button.disabled = false;
    // A disabled button loses the focus.
    if (button.isConnected && document.activeElement === document.body) button.focus();
  };
  return el("button", { type: "button", onclick: press }, label);
}
