// The names in the picture: how a long one is cut, and on which side of its mark each stands, so that none covers
// another. Sizes are points of the screen; letters are all of one width.

import { shown } from "./dom.js";

export const LABEL = 20;
export const [LETTER, LINE] = [7.3, 15];
const [MARK, GAP, FOLD] = [22, 12, 1.4];
// A side of a mark: whether a name begins, has its middle or ends so far beside it, how far below it the line of the
// name is, and whether more lines go upwards. Best first.
const side = (anchor, x, y, lift = 0) => ({ anchor, x, y, lift });
export const [RIGHT, LEFT] = [side("start", GAP, 4), side("end", -GAP, 4)];
const SIDES = [
  side("middle", 0, 24), side("middle", 0, -14, 1), RIGHT, LEFT, side("start", 8, 20), side("end", -8, 20),
  side("start", 8, -10, 1), side("end", -8, -10, 1),
];
const SHARES = { start: 0, middle: -0.5, end: -1 };

// A long name, cut in its middle: ends tell names apart as well as beginnings do.
export function label(name) {
  const letters = [...shown(name)];
  if (letters.length <= LABEL) return letters.join("");
  return `${letters.slice(0, LABEL / 2).join("")}…${letters.slice(1 - LABEL / 2).join("")}`;
}

// What all names end with, from a dot on: it tells none of them apart.
function commonEnd(names) {
  const [first = [], ...others] = names.map(name => name.split(".").slice(1).reverse());
  const at = first.findIndex((part, index) => others.some(other => other[index] !== part));
  const common = first.slice(0, at < 0 ? first.length : at).reverse();
  return names.length > 1 && common.length > 0 ? `.${common.join(".")}` : "";
}

// How each of some names is shown: without what all of them have.
export function shortening(names) {
  const end = commonEnd(names);
  return name => label(name.endsWith(end) ? name.slice(0, name.length - end.length) : name);
}

const boxAt = (left, top, width, height) => ({ left, top, right: left + width, bottom: top + height });

const isOver = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

// Whether a line runs through a box: between its corners, and not past it.
function isCrossed({ left, right, top, bottom }, [x, y, toX, toY]) {
  if (Math.max(x, toX) < left || Math.min(x, toX) > right || Math.max(y, toY) < top || Math.min(y, toY) > bottom) {
    return false;
  }
  const of = (a, b) => Math.sign((toX - x) * (b - y) - (toY - y) * (a - x));
  return Math.abs(of(left, top) + of(right, top) + of(left, bottom) + of(right, bottom)) < 4;
}

// Gives each node with a level name the side on which that stands within the frame and covers neither a mark nor
// another name, and of these the one through which the fewest lines run; where there is none, it is crowded. A frame is
// in points of the picture, and so are lines: [x, y, x, y].
export function arrange(names, nodes, lines, scale, frame) {
  const mark = ({ x, y }) => boxAt(x / scale - MARK / 2, y / scale - MARK / 2, MARK, MARK);
  const marks = nodes.map(node => [node, mark(node)]);
  const drawn = lines.map(line => line.map(number => number / scale));
  const [least, most] = [frame.left / scale, frame.right / scale];
  const taken = [];
  for (const { node, text, isFolded } of names) {
    const [x, y, rows] = [node.x / scale, node.y / scale, isFolded ? 2 : 1];
    const width = Math.max([...text].length, isFolded ? LABEL : 0) * LETTER;
    const place = one => {
      // The mark of a fold is larger. What stands above or below a mark may move to stay within the frame.
      const fold = isFolded ? FOLD : 1;
      const [beside, below] = [one.x * fold, one.lift > 0 ? one.y * fold : one.y];
      const left = x + beside + SHARES[one.anchor] * width;
      const kept = one.anchor === "middle" ? Math.min(Math.max(left, least), most - width) : left;
      const box = boxAt(kept, y + below - one.lift * (rows - 1) * LINE + 4 - LINE, width, rows * LINE);
      return { ...one, x: beside + kept - left, y: below, box };
    };
    const isFree = ({ box }) => box.left >= least && box.right <= most && !taken.some(other => isOver(box, other)) &&
      !marks.some(([other, at]) => other !== node && isOver(box, at));
    const around = boxAt(x - width - 2 * MARK, y - 3 * MARK, 2 * width + 4 * MARK, 6 * MARK);
    const near = drawn.filter(line => isCrossed(around, line));
    const free = SIDES.map(place).filter(isFree);
    const through = free.map(({ box }) => near.filter(line => isCrossed(box, line)).length);
    const best = free[through.indexOf(Math.min(...through))];
    [node.side, node.isCrowded] = [best ?? SIDES[0], !best];
    if (best) taken.push(best.box);
  }
}
