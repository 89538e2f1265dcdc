// What is broken in the mesh, and what that has cut off: as sentences above a view, and among its links. The node finds
// the causes.

import { get, list } from "./api.js";
import { count, el, moment, nodeLink } from "./dom.js";

// Of one outage, by name.
const MOST_LOST = 3;
const MOST_SENTENCES = 5;

function sentence({ lost, behind, since }) {
  const more = lost.length - MOST_LOST;
  const named = lost.slice(0, MOST_LOST).flatMap((name, at) => [at > 0 && ", ", nodeLink(name)]);
  if (lost.length === 0) return [count(behind.length, "node"), " out of reach, by ways that this node has never seen"];
  return [
    named, more > 0 && ` and ${more} more`, lost.length === 1 ? " is" : " are", " out of reach",
    since && [" since ", moment(since)], behind.length > 0 && `; ${count(behind.length, "node")} behind`,
  ];
}

// A paragraph for each of the largest outages.
export function causes({ outages }) {
  const more = outages.length - MOST_SENTENCES;
  return [
    ...outages.slice(0, MOST_SENTENCES).map(one => el("p", { class: "outage" }, sentence(one))),
    more > 0 && el("p", { class: "outage" }, `and ${count(more, "other outage")}`),
  ];
}

// Why a node is out of reach, as a paragraph; nothing if it is not.
export const causeOf = ({ outages }, name) =>
  causes({ outages: outages.filter(({ lost, behind }) => lost.includes(name) || behind.includes(name)) });

// All links, also those that broke, and what is out of reach. Nothing is known of a link between two nodes that are.
export async function linksAndOutages() {
  const [links, told] = await Promise.all([list("links"), get("outages")]);
  const key = ({ a, b }) => JSON.stringify([a, b]);
  const broken = new Map(told.broken_links.map(one => [key(one), { ...one, broken: true, reason: one.why }]));
  const away = new Set(told.outages.flatMap(({ lost, behind }) => [...lost, ...behind]));
  const known = links.filter(one => !broken.has(key(one)))
    .map(one => ({ ...one, isAway: away.has(one.a) && away.has(one.b) }));
  return [[...broken.values(), ...known], told];
}
