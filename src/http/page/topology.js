// The picture of the mesh: nodes stand where the node that serves the page says, leaves fold into their hop where there
// are many, and one walks, zooms and moves by mouse or keyboard. It asks nobody; what a node is comes in, and which one
// was chosen goes out.

import { count, el, fill, keyed, shown, svg } from "./dom.js";
import { LABEL, LEFT, LETTER, LINE, RIGHT, arrange, label, shortening } from "./labels.js";

// From so many nodes on leaves fold into their hop; up to so many, names of leaves are level.
const FOLDED = 60;
const LEVEL = 14;
// Points of the screen around the outermost nodes.
const MARGIN = 48;
// How much wider than high the places of nodes are, and the most by which a high screen draws them higher.
const [WIDE, HIGHEST] = [1.4, 2.2];
// A point of the picture is at most so many of the screen, and at least. Names of leaves need so many each.
const [LARGEST, SMALLEST, READABLE] = [1.4, 0.02, 12];
const STEP = 1.3;
// Points of the screen that a click may move.
const CLICK = 4;
const SHAPES = {
  execution: "M0,-6A6,6 0 1,1 0,6A6,6 0 1,1 0,-6Z", control: "M-6,-6H6V6H-6Z", hop: "M0,-8L8,0L0,8L-8,0Z",
};

const inOrder = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// The picture. A node is {name, kind, shape, isWrong, about, x, y, parent}, a link {a, b, kind, about}; kinds are
// classes.
export class Picture {
  #all = new Map();
  #nodes = new Map();
  #links = new Map();
  #told = [];
  #short = label;
  #open = new Set();
  #found = null;
  #chosen = null;
  #current = null;
  // The middle and the scale, if somebody has chosen one.
  #view = null;
  #scale = 1;
  #drag = null;

  constructor(own, choose) {
    this.own = own;
    this.choose = choose;
    this.lines = svg("g");
    this.marks = svg("g");
    const words = "Nodes; arrow keys go from one to the next, + and - zoom, 0 fits all";
    this.drawing = svg("svg", { role: "group", "aria-label": words }, this.lines, this.marks);
    for (const kind of ["keydown", "wheel", "pointerdown", "pointermove", "pointerup", "pointercancel"]) {
      this.drawing.addEventListener(kind, event => this.#on(event), { passive: false });
    }
    this.element = el("div", { id: "picture" }, this.drawing);
    const tool = (name, words, press) =>
      el("button", { type: "button", "aria-label": words, title: words, onclick: press }, name);
    this.folds = el("button", { type: "button", hidden: true, onclick: () => this.#foldAll() });
    this.tools = el("span", { class: "actions" }, tool("+", "Zoom in", () => this.#zoom(1 / STEP)),
      tool("−", "Zoom out", () => this.#zoom(STEP)), tool("Fit", "Fit all", () => this.#fit()), this.folds);
    const observer = new ResizeObserver(() => this.#redo());
    observer.observe(this.element);
    this.close = () => observer.disconnect();
  }

  show(nodes, links) {
    this.#all = new Map(nodes.map(node => [node.name, { ...node, told: node.y, leaves: [] }]));
    const hops = new Set(nodes.map(node => node.parent));
    for (const node of this.#all.values()) {
      node.isLeaf = node.parent != null && !hops.has(node.name);
      if (node.isLeaf) this.#all.get(node.parent)?.leaves.push(node);
    }
    this.#short = shortening([...this.#all.keys()]);
    this.#told = links;
    this.#redo();
  }

  get #folds() {
    return this.#all.size >= FOLDED;
  }

  #isFolded(node) {
    return this.#folds && node.leaves.length > 0 && !this.#open.has(node.name);
  }

  // Leaves within a fold are hidden, unless somebody looks for them.
  #isShown({ name, parent, isLeaf }) {
    const hop = isLeaf && this.#all.get(parent);
    const isFound = this.#found?.size < FOLDED && this.#found.has(name);
    return !hop || !this.#isFolded(hop) || name === this.#chosen || isFound;
  }

  // Makes the elements of what is to be seen.
  #redo() {
    const room = this.element.getBoundingClientRect();
    const stretch = Math.min(Math.max((room.height / Math.max(room.width, 1)) * WIDE, 1), HIGHEST);
    for (const node of this.#all.values()) node.y = node.told * stretch;
    const angle = ({ x, y }) => Math.atan2(y, x);
    const nodes = [...this.#all.values()].filter(node => this.#isShown(node));
    nodes.sort((a, b) => angle(a) - angle(b) || Math.hypot(a.x, a.y) - Math.hypot(b.x, b.y) || inOrder(a.name, b.name));
    this.#nodes = keyed(this.#nodes, nodes, node => node.name, () => this.#mark(), this.marks);
    const drawn = this.#told.filter(({ a, b }) => this.#nodes.has(a) && this.#nodes.has(b));
    const [key, line] = [({ a, b }) => JSON.stringify([a, b]), () => svg("line", {}, svg("title"))];
    this.#links = keyed(this.#links, drawn, key, line, this.lines);
    for (const entry of this.#links.values()) {
      const { element, value } = entry;
      const [from, to] = [this.#all.get(value.a), this.#all.get(value.b)];
      entry.line = [from.x, from.y, to.x, to.y];
      ["x1", "y1", "x2", "y2"].forEach((name, at) => element.setAttribute(name, entry.line[at]));
      element.setAttribute("class", `${value.kind}${this.#isDim(value.a) && this.#isDim(value.b) ? " dim" : ""}`);
      const title = `${value.a} – ${value.b}: ${value.about}`;
      if (isNews(entry, title)) fill(element.firstChild, title);
    }
    for (const entry of this.#nodes.values()) this.#fillNode(entry);
    this.folds.hidden = !this.#folds;
    fill(this.folds, this.#open.size > 0 ? "Fold all" : "Unfold all");
    this.#draw(room);
  }

  #isDim(name) {
    return this.#found !== null && !this.#found.has(name);
  }

  #mark() {
    const press = event => this.#press(event.currentTarget.dataset.name);
    return svg("g", { role: "button", tabindex: -1, onclick: press }, svg("title"), svg("path"),
      svg("text", {}, svg("tspan"), svg("tspan", { "font-size": 0 }, " "), svg("tspan", { dy: "1.25em" })));
  }

  // The middle and the scale that have all nodes in the picture.
  #whole({ width, height }) {
    const nodes = [...this.#nodes.values()].map(({ value }) => value);
    const range = key => [Math.min(...nodes.map(node => node[key])), Math.max(...nodes.map(node => node[key]))];
    const [[left, right], [top, bottom]] = [range("x"), range("y")];
    const within = (side, above) =>
      Math.max((right - left) / (width - 2 * side), (bottom - top) / (height - 2 * above), 1 / LARGEST);
    const hasLeaves = nodes.some(node => node.isLeaf);
    const names = hasLeaves ? LABEL * LETTER : (LABEL * LETTER) / 2;
    const named = within(Math.min(names + MARGIN / 2, width / 4), this.#isLevel ? MARGIN : Math.min(names, height / 4));
    const isNear = names + MARGIN / 2 <= width / 4 && this.#isReadable(named);
    const scale = isNear ? named : within(Math.min((LABEL * LETTER) / 2, width / 10), MARGIN);
    return { x: (left + right) / 2, y: (top + bottom) / 2, scale, isNear };
  }

  // Whether names of leaves do not cover each other.
  #isReadable(scale) {
    const leaves = [...this.#nodes.values()].map(({ value }) => value).filter(node => node.isLeaf);
    const gap = ({ x, y }, at) => Math.hypot(x - leaves.at(at - 1).x, y - leaves.at(at - 1).y);
    return this.#isLevel || leaves.length < 2 || Math.min(...leaves.map(gap)) / scale >= READABLE;
  }

  get #isLevel() {
    return this.#nodes.size <= LEVEL;
  }

  // To measure the room lays out what has changed, which takes as long as to draw it.
  #draw(room = this.element.getBoundingClientRect()) {
    if (this.#nodes.size === 0 || room.width === 0) return;
    const { x, y, scale, isNear } = this.#view ?? this.#whole(room);
    this.#scale = scale;
    const [width, height] = [room.width * scale, room.height * scale];
    this.drawing.setAttribute("viewBox", `${x - width / 2} ${y - height / 2} ${width} ${height}`);
    this.drawing.setAttribute("class", this.#isLevel || (isNear ?? this.#isReadable(scale)) ? "near" : "far");
    if (!this.#nodes.has(this.#current)) {
      this.#current = this.#nodes.has(this.own) ? this.own : this.#nodes.keys().next().value;
    }
    const level = ({ value }) => !value.isLeaf || this.#isLevel;
    const names = [...this.#nodes.values()].filter(level).map(({ value }) =>
      ({ node: value, text: this.#short(value.name), isFolded: this.#isFolded(value) }));
    arrange(names, [...this.#nodes.values()].map(({ value }) => value), [...this.#links.values()].map(one => one.line),
      scale, { left: x - width / 2, right: x + width / 2 });
    for (const { element, value } of this.#nodes.values()) this.#placeNode(element, value);
  }

  // What is to be read of a node.
  #fillNode(entry) {
    const { element, value: { name, kind, shape, about, leaves, isLeaf } } = entry;
    const isFolded = this.#isFolded(entry.value);
    const wrong = leaves.filter(leaf => leaf.isWrong).length;
    const within = isFolded ? `${count(leaves.length, "node")}${wrong > 0 ? `, ${wrong} wrong` : ""}` : "";
    const [short, isDim] = [this.#short(name), this.#isDim(name)];
    if (!isNews(entry, [short, kind, shape, about, within, wrong, isLeaf, isDim].join("\n"))) return;
    const [title, mark, text] = element.children;
    const classes = [kind, isLeaf && "leaf", isFolded && "folded", wrong > 0 && "ill", isDim && "dim"];
    element.setAttribute("class", classes.filter(Boolean).join(" "));
    const told = `${name}: ${about}`;
    element.setAttribute("aria-label", shown(within ? `${short} ${within} behind it; ${told}` : told));
    fill(title, within ? `${told}; ${within} behind it` : told);
    mark.setAttribute("d", SHAPES[shape]);
    mark.setAttribute("transform", isFolded ? "scale(1.6)" : "scale(1)");
    element.dataset.name = name;
    fill(text.children[0], short);
    fill(text.lastChild, within);
    text.removeAttribute("textLength");
    // Letters of some scripts are wider than those for which there is room.
    if ([...short].some(letter => letter > "\u024f")) text.setAttribute("textLength", [...short].length * LETTER);
    text.setAttribute("lengthAdjust", "spacingAndGlyphs");
  }

  // Marks and names have the same size on the screen, whatever the scale is.
  #placeNode(element, node) {
    const { name, x, y, isLeaf } = node;
    element.setAttribute("transform", `translate(${x} ${y}) scale(${this.#scale})`);
    element.classList.toggle("crowded", Boolean(node.isCrowded) && (!isLeaf || this.#isLevel));
    element.setAttribute("aria-current", name === this.#chosen);
    element.setAttribute("tabindex", name === this.#current ? 0 : -1);
    this.#place(element.children[2], node, this.#isFolded(node));
  }

  // Names of leaves stand outside of the ring, in the direction of their link; others are level.
  #place(text, { x, y, isLeaf, side }, isFolded) {
    const isLeft = x < -1;
    const angle = (Math.atan2(y, x) * 180) / Math.PI + (isLeft ? 180 : 0);
    const isTurned = isLeaf && !this.#isLevel;
    const one = isTurned ? (isLeft ? LEFT : RIGHT) : side;
    text.setAttribute("text-anchor", one.anchor);
    text.setAttribute("y", one.y - (isFolded ? one.lift * LINE : 0));
    for (const part of text.children) part.setAttribute("x", one.x);
    text.setAttribute("transform", isTurned ? `rotate(${angle.toFixed(1)})` : "");
  }

  // A fold opens, and closes when it is chosen again.
  #press(name) {
    const node = this.#all.get(name);
    if (this.#folds && node.leaves.length > 0) {
      if (this.#open.has(name)) this.#open.delete(name);
      else this.#open.add(name);
      this.#redo();
    }
    this.choose(name);
  }

  #foldAll() {
    const hops = [...this.#all.values()].filter(node => node.leaves.length > 0).map(node => node.name);
    this.#open = new Set(this.#open.size > 0 ? [] : hops);
    this.#view = null;
    this.#redo();
  }

  #fit() {
    this.#view = null;
    this.#draw();
  }

  // Zooms around a point of the picture, or around its middle.
  #zoom(factor, around) {
    const old = this.#view ?? this.#whole(this.element.getBoundingClientRect());
    const scale = Math.min(Math.max(old.scale * factor, SMALLEST), 1 / SMALLEST);
    const at = around ?? old;
    const moved = key => at[key] + ((old[key] - at[key]) * scale) / old.scale;
    this.#view = { x: moved("x"), y: moved("y"), scale };
    this.#draw();
  }

  #on(event) {
    const { type, clientX, clientY, deltaY } = event;
    if (type === "keydown") return this.#key(event);
    if (type === "wheel") {
      event.preventDefault();
      const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(this.drawing.getScreenCTM().inverse());
      return this.#zoom(deltaY > 0 ? STEP : 1 / STEP, { x, y });
    }
    if (type === "pointerdown") this.#drag = { x: clientX, y: clientY, isMoved: false };
    else if (type !== "pointermove") this.#drag = null;
    if (type !== "pointermove" || !this.#drag) return null;
    const [x, y] = [this.#drag.x - clientX, this.#drag.y - clientY];
    if (!this.#drag.isMoved && Math.hypot(x, y) < CLICK) return null;
    // From now on the pointer is the picture's, and no node is clicked at the end.
    if (!this.#drag.isMoved) this.drawing.setPointerCapture(event.pointerId);
    this.#drag = { x: clientX, y: clientY, isMoved: true };
    const old = this.#view ?? this.#whole(this.element.getBoundingClientRect());
    this.#view = { x: old.x + x * old.scale, y: old.y + y * old.scale, scale: old.scale };
    return this.#draw();
  }

  // Dims all but the nodes whose name has the text, shows them if they are few, and returns their names.
  search(text) {
    const found = [...this.#all.keys()].filter(name => name.toLowerCase().includes(text.toLowerCase()));
    this.#found = text === "" ? null : new Set(found);
    this.#redo();
    return found;
  }

  // Shows which one was chosen, or that none is.
  mark(chosen) {
    if (this.#chosen === chosen) return;
    this.#chosen = chosen;
    this.#redo();
  }

  focus(name) {
    if (!this.#nodes.has(name)) return;
    this.#current = name;
    const { element, value } = this.#nodes.get(name);
    this.#draw();
    element.focus({ preventScroll: true });
    const [edge, box] = [this.element, element.children[1]].map(one => one.getBoundingClientRect());
    const isSeen = box.left >= edge.left && box.right <= edge.right && box.top >= edge.top && box.bottom <= edge.bottom;
    if (!isSeen) {
      this.#view = { ...value, scale: this.#scale };
      this.#draw();
    }
  }

  #key(event) {
    const name = event.target.dataset.name;
    const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const names = [...this.#nodes.keys()];
    if (event.key === "Enter" || event.key === " ") this.#press(name);
    else if (event.key === "Home" || event.key === "End") this.focus(names.at(event.key === "Home" ? 0 : -1));
    else if (event.key === "+" || event.key === "-") this.#zoom(event.key === "+" ? 1 / STEP : STEP);
    else if (event.key === "0") this.#fit();
    else if (event.key in ways) this.focus(this.#neighbour(name, ways[event.key]));
    else return;
    event.preventDefault();
  }

  // Left and right go through all nodes, around the middle; up and down to the nearest one there.
  #neighbour(name, [down, right]) {
    const names = [...this.#nodes.keys()];
    if (right !== 0) return names.at((names.indexOf(name) + right) % names.length);
    const at = other => this.#all.get(other);
    const cost = other => (at(other).y - at(name).y) * down + 2 * Math.abs(at(other).x - at(name).x);
    const others = names.filter(other => (at(other).y - at(name).y) * down > 0);
    return others.reduce((a, b) => (cost(b) < cost(a) ? b : a), others[0] ?? name);
  }
}

// Whether an element is to say something else than it says.
function isNews(entry, told) {
  const isSame = entry.told === told;
  entry.told = told;
  return !isSame;
}
