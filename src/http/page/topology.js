// The picture of the mesh: where each node stands, and how one walks there by keyboard. The layout is that of
// src/cli/graph/layout.rs: cells of a grid, one node in each, and who stood somewhere stays there, whatever its links
// do. It asks nobody; what a node is comes in, and which one was chosen goes out.

import { el, fill, shown, svg } from "./dom.js";

const [WIDTH, HEIGHT, COLUMNS, ROWS] = [1600, 1000, 12, 17];
// Up to so many nodes stand in every second cell.
const SPARSE = 40;
const LABEL = 20;
// Pixels of a cell on the screen: at least what a label needs.
const DENSE_CELL = { width: [128, 140], height: [42, 60], label: 122, below: 17 };
const SPARSE_CELL = { width: [86, 120], height: [36, 56], label: 164, below: 22 };
// Places that are kept in the browser.
const MOST_PLACES = 2000;
// Milliseconds for which a node that is gone is still shown.
const REMEMBERED = 600_000;

const middle = ([row, column]) => [
  Math.floor(((2 * column + 1) * WIDTH) / (2 * COLUMNS)),
  Math.floor(((2 * row + 1) * HEIGHT) / (2 * ROWS)),
];

function distance(one, other) {
  const [[x, y], [a, b]] = [middle(one), middle(other)];
  return Math.hypot(x - a, y - b);
}

// Whether a cell is on the line between two, or at an end of it.
const isOnLine = ([row, column], [[r, c], [s, d]]) =>
  (row - r) * (d - c) === (column - c) * (s - r) && (row - r) * (row - s) <= 0 && (column - c) * (column - d) <= 0;

const inOrder = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// Places for the nodes of a mesh, as [row, column] by name. Links are [name, name].
export function layout(nodes, links, before) {
  const names = [...nodes].sort(inOrder);
  const neighbours = new Map(names.map(name => [name, new Set()]));
  for (const [one, other] of links) {
    if (one === other || !neighbours.has(one) || !neighbours.has(other)) continue;
    neighbours.get(one).add(other);
    neighbours.get(other).add(one);
  }
  const places = new Map([...before].filter(([name]) => neighbours.has(name)));
  const taken = new Set([...places.values()].map(String));
  const rows = Math.max(ROWS, Math.floor(names.length / COLUMNS) + 1);
  const cells = Array.from({ length: rows * COLUMNS }, (_, at) => [Math.floor(at / COLUMNS), at % COLUMNS]);
  const free = step => cells.filter(cell => cell.every(at => at % step === 0) && !taken.has(String(cell)));
  const [centre, isSparse] = [[Math.floor(ROWS / 2), Math.floor(COLUMNS / 2)], names.length <= SPARSE];
  for (let name = next(neighbours, places); name !== undefined; name = next(neighbours, places)) {
    const placed = [...neighbours.get(name)].sort(inOrder).filter(other => places.has(other));
    const near = placed.length > 0 ? placed.map(other => places.get(other)) : [centre];
    const lines = [...links].map(ends => ends.map(end => places.get(end))).filter(ends => ends.every(Boolean));
    const behind = (cell, end) => [...places.values()].filter(other => isOnLine(other, [cell, end])).length;
    // A link through somebody else's node would be read as two.
    const hidden = cell =>
      isSparse && near.reduce((sum, end) => sum + behind(cell, end), lines.filter(line => isOnLine(cell, line)).length);
    // The middle draws a little, so that what has one neighbour does not stand at the edge.
    const cost = cell =>
      near.reduce((sum, end) => sum + distance(cell, end), 0) + distance(cell, centre) / 4 + hidden(cell) * WIDTH;
    const choices = (isSparse ? [2, 1] : [1]).map(free).find(some => some.length > 0);
    const best = choices.map(cell => [cost(cell), cell]).reduce((a, b) => (b[0] < a[0] ? b : a))[1];
    taken.add(String(best));
    places.set(name, best);
  }
  return places;
}

// Who is placed next: most of its links lead to nodes that are placed; then the one with most links, then by name.
function next(neighbours, places) {
  let [best, rank] = [undefined, []];
  for (const [name, others] of neighbours) {
    if (places.has(name)) continue;
    const own = [[...others].filter(other => places.has(other)).length, others.size];
    if (best === undefined || own[0] > rank[0] || (own[0] === rank[0] && own[1] > rank[1])) [best, rank] = [name, own];
  }
  return best;
}

// A name as a label.
export function label(name) {
  const letters = [...shown(name)];
  return letters.length > LABEL ? `${letters.slice(0, LABEL - 1).join("")}…` : letters.join("");
}

// Places that this browser has kept; what is no place any more is dropped.
function kept(key) {
  let saved = [];
  try {
    saved = Object.entries(JSON.parse(localStorage.getItem(key)) ?? {});
  } catch {
    // Nothing is kept, or something else.
  }
  const taken = new Set();
  const isPlace = ([, cell]) => {
    const isCell = Array.isArray(cell) && cell.length === 2 && cell.every(Number.isInteger);
    const isInside = isCell && Math.min(...cell) >= 0 && cell[0] < MOST_PLACES && cell[1] < COLUMNS;
    return isInside && !taken.has(String(cell)) && taken.add(String(cell));
  };
  return new Map(saved.filter(isPlace));
}

// The picture. A node is {name, kind, about}, a link {a, b, kind, about}; kinds are classes.
export class Picture {
  #nodes = new Map();
  #links = new Map();
  #seen = new Map();
  #current = null;
  #box = null;

  constructor(own, choose) {
    this.own = own;
    this.key = `meshd.places.${own}`;
    this.places = kept(this.key);
    this.choose = choose;
    this.lines = svg("g");
    this.marks = svg("g");
    const about = { role: "group", "aria-label": "Nodes; arrow keys go from one to the next" };
    this.drawing = svg("svg", about, this.lines, this.marks);
    this.drawing.addEventListener("keydown", event => this.#press(event));
    this.element = el("div", { id: "picture" }, this.drawing);
    const observer = new ResizeObserver(() => this.#draw());
    observer.observe(this.element);
    this.close = () => observer.disconnect();
  }

  show(nodes, links) {
    const [now, before] = [Date.now(), this.places];
    for (const node of nodes) this.#seen.set(node.name, { node, at: now });
    for (const [name, { at }] of this.#seen) if (now - at > REMEMBERED) this.#seen.delete(name);
    const all = [...this.#seen.values()].map(({ node, at }) =>
      at === now ? node : { ...node, kind: "lost", about: "lost" });
    all.sort((a, b) => inOrder(a.name, b.name));
    this.places = layout(all.map(node => node.name), links.map(({ a, b }) => [a, b]), before);
    // Who comes back finds its place, unless another one stands there.
    const taken = new Set([...this.places.values()].map(String));
    for (const [name, cell] of before) {
      if (!this.places.has(name) && !taken.has(String(cell))) this.places.set(name, cell);
    }
    this.#save();
    this.#nodes = keyed(this.#nodes, all, node => node.name, () => this.#mark(), this.marks);
    const drawn = links.filter(({ a, b }) => this.#nodes.has(a) && this.#nodes.has(b));
    const [key, line] = [({ a, b }) => JSON.stringify([a, b]), () => svg("line", {}, svg("title"))];
    this.#links = keyed(this.#links, drawn, key, line, this.lines);
    for (const { element, value } of this.#links.values()) {
      element.setAttribute("class", value.kind);
      fill(element.firstChild, `${value.a} – ${value.b}: ${value.about}`);
    }
    this.#draw();
  }

  #save() {
    try {
      localStorage.setItem(this.key, JSON.stringify(Object.fromEntries([...this.places].slice(0, MOST_PLACES))));
    } catch {
      // A browser that keeps nothing: the places are those of this tab.
    }
  }

  #mark() {
    return svg("g", { role: "button", tabindex: -1, onclick: event => this.choose(event.currentTarget.dataset.name) },
      svg("title"), svg("circle", { r: 6 }), svg("text", { "text-anchor": "middle" }));
  }

  // Positions, by the cells and the room that there is. The box of cells that is drawn only grows.
  #draw() {
    const cells = [...this.#nodes.keys()].map(name => this.places.get(name));
    if (cells.length === 0) return;
    const box = this.#box ?? { rows: [Infinity, 0], columns: [Infinity, 0] };
    for (const [row, column] of cells) {
      box.rows = [Math.min(box.rows[0], row), Math.max(box.rows[1], row)];
      box.columns = [Math.min(box.columns[0], column), Math.max(box.columns[1], column)];
    }
    this.#box = box;
    const isSparse = cells.every(cell => cell.every(at => at % 2 === 0));
    const cell = isSparse ? SPARSE_CELL : DENSE_CELL;
    const room = this.element.getBoundingClientRect();
    // A label at the edge of a sparse picture needs half of the free cell beside it.
    const columns = isSparse ? [box.columns[0] - 0.5, box.columns[1] + 0.5] : box.columns;
    const isFirst = !this.drawing.hasAttribute("class");
    const [width, side] = spread(columns, room.width, cell.width);
    const left = isSparse ? side + width / 2 : side;
    const [height, top] = spread(box.rows, Math.max(window.innerHeight - room.top - 90, 0), cell.height);
    this.drawing.setAttribute("class", isSparse ? "sparse" : "dense");
    this.drawing.setAttribute("width", 2 * left + (box.columns[1] - box.columns[0]) * width);
    this.drawing.setAttribute("height", 2 * top + (box.rows[1] - box.rows[0]) * height + cell.below / 2);
    const at = name => {
      const [row, column] = this.places.get(name);
      return [left + (column - box.columns[0]) * width, top + (row - box.rows[0]) * height];
    };
    for (const { element, value } of this.#links.values()) {
      const [[x1, y1], [x2, y2]] = [at(value.a), at(value.b)];
      for (const [key, number] of Object.entries({ x1, y1, x2, y2 })) element.setAttribute(key, number);
    }
    for (const [name, { element, value }] of this.#nodes) this.#drawNode(element, name, value, at(name), cell);
    if (!this.#nodes.has(this.#current)) {
      this.#current = this.#nodes.has(this.own) ? this.own : this.#nodes.keys().next().value;
    }
    if (isFirst) this.element.scrollLeft = at(this.#current)[0] - room.width / 2;
    this.#nodes.get(this.#current).element.setAttribute("tabindex", 0);
  }

  #drawNode(element, name, { kind, about }, [x, y], cell) {
    const [title, , text] = element.children;
    element.setAttribute("transform", `translate(${x} ${y})`);
    element.setAttribute("class", `${kind}${element.classList.contains("dim") ? " dim" : ""}`);
    element.setAttribute("aria-label", shown(`${name}: ${about}`));
    fill(title, `${name}: ${about}`);
    text.setAttribute("y", cell.below);
    if (element.dataset.name === name && element.dataset.label === String(cell.label)) return;
    [element.dataset.name, element.dataset.label] = [name, cell.label];
    fill(text, label(name));
    text.removeAttribute("textLength");
    // Letters of some scripts are wider than those for which a cell has room.
    if (text.getComputedTextLength() > cell.label) {
      text.setAttribute("textLength", cell.label);
      text.setAttribute("lengthAdjust", "spacingAndGlyphs");
    }
  }

  // Dims all but the nodes whose name has the text, and returns the names of these.
  search(text) {
    const found = [...this.#nodes.keys()].filter(name => name.toLowerCase().includes(text.toLowerCase()));
    for (const [name, { element }] of this.#nodes) element.classList.toggle("dim", !found.includes(name));
    return found;
  }

  // Shows which one was chosen, or that none is.
  mark(chosen) {
    for (const [name, { element }] of this.#nodes) element.setAttribute("aria-current", name === chosen);
  }

  focus(name) {
    const [former, one] = [this.#nodes.get(this.#current), this.#nodes.get(name)];
    if (!one) return;
    former?.element.setAttribute("tabindex", -1);
    one.element.setAttribute("tabindex", 0);
    this.#current = name;
    one.element.focus();
    one.element.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // Where a node stands in the picture, from 0 at its left to 1 at its right.
  side(name) {
    const [first, last] = this.#box?.columns ?? [0, 0];
    return this.places.has(name) ? (this.places.get(name)[1] - first) / Math.max(last - first, 1) : 0;
  }

  #press(event) {
    const name = event.target.dataset.name;
    const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const names = [...this.#nodes.keys()];
    if (event.key === "Enter" || event.key === " ") this.choose(name);
    else if (event.key === "Home" || event.key === "End") this.focus(names.at(event.key === "Home" ? 0 : -1));
    else if (event.key in ways) this.focus(this.#neighbour(name, ways[event.key]));
    else return;
    event.preventDefault();
  }

  // Left and right go through all nodes, row by row; up and down to the nearest one there.
  #neighbour(name, [down, right]) {
    const place = other => this.places.get(other);
    if (right !== 0) {
      const names = [...this.#nodes.keys()].sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1]);
      return names.at((names.indexOf(name) + right) % names.length);
    }
    const [row, column] = place(name);
    const cost = other => (place(other)[0] - row) * down + 2 * Math.abs(place(other)[1] - column);
    const others = [...this.#nodes.keys()].filter(other => (place(other)[0] - row) * down > 0);
    return others.reduce((a, b) => (cost(b) < cost(a) ? b : a), others[0] ?? name);
  }
}

// The size of a cell, and where the middle of the first one is, for cells of a range in some room.
function spread([first, last], room, [least, most]) {
  const number = last - first + 1;
  const size = Math.min(Math.max(room / number, least), most);
  return [size, Math.max(room - number * size, 0) / 2 + size / 2];
}

// Elements for values by their keys; those that are there stay.
function keyed(before, values, key, make, parent) {
  const entry = value => [key(value), { element: before.get(key(value))?.element ?? make(), value }];
  const after = new Map(values.map(entry));
  for (const [old, { element }] of before) if (!after.has(old)) element.remove();
  for (const { element } of after.values()) if (element.parentNode !== parent) parent.append(element);
  return after;
}
