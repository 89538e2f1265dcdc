// The views of the mesh: its picture with what is known of one node, links, nodes, groups, and what the doctor finds.
// It owns what counts as wrong with a node or a link, so that every view says the same of it.

import { get, list, may, post, session } from "./api.js";
import {
  Table, action, ago, count, el, facts, field, fill, jobLink, link, named, names, nodeLink, refill, say, searchForm,
  searchInput, size, state, usage,
} from "./dom.js";
import { jobState } from "./jobs.js";
import { Picture } from "./topology.js";

// Of one node, in its panel.
const MOST_LINKS = 100;
const aboutMesh = ({ event }) => /^(link|node|instance)\./.test(event) || event === "job.state";
const LEGEND = [["ok", "in order"], ["warn", "not ready"], ["off", "disabled"], ["bad", "out of reach or with errors"],
  ["own", "this node"]];

// Whether the node lives up to what its operators want of it: a class, and words.
function condition(node, instance) {
  if (!node.reachable) return ["bad", "out of reach"];
  if (!instance) return ["ok", node.own ? "this node" : "reachable"];
  if (!instance.enabled) return ["off", "disabled"];
  if (instance.errors?.length > 0) return ["bad", instance.node_state];
  return instance.node_state === "ready" ? ["ok", "ready"] : ["warn", instance.node_state];
}

function roundTrip(seconds) {
  if (seconds == null) return "";
  return seconds < 1 ? `${(seconds * 1000).toPrecision(seconds < 0.001 ? 1 : 3)} ms` : `${seconds.toFixed(2)} s`;
}

const percent = share => `${(share * 100).toFixed(share > 0 && share < 0.01 ? 1 : 0)} %`;

// What both ends say of a link, as one: the worst of what harms, and the latest round trip.
function summary(one) {
  const all = one.figures ?? [];
  const worst = key => Math.max(...all.map(figure => figure[key]));
  const of = end => all.find(figure => figure.from === end);
  const way = (from, to) => of(from)?.bytes_out ?? of(to)?.bytes_in;
  const cost = [one.cost_ab, one.cost_ba].map(each => each ?? "unknown");
  return {
    ...one,
    cost: cost[0] === cost[1] ? cost[0] : cost.join(" / "),
    isHalf: one.cost_ab == null || one.cost_ba == null,
    isKnown: all.length > 0,
    transport: all[0]?.transport ?? "",
    rtt: all.map(figure => figure.rtt_seconds).findLast(rtt => rtt != null),
    loss: all.length > 0 ? worst("loss") : null,
    queued: all.length > 0 ? worst("queued_bytes") : null,
    dropped: all.reduce((sum, figure) => sum + figure.dropped, 0),
    there: way(one.a, one.b),
    back: way(one.b, one.a),
    asked: all.map(figure => figure.asked).sort().at(-1),
  };
}

const linkKind = one => (one.loss > 0 ? "bad" : one.isHalf ? "half" : "ok");

const linkState = one =>
  ({ bad: state("loses packets", "bad"), half: state("one end alone", "warn"), ok: state("up", "ok") })[linkKind(one)];

function aboutLink(one) {
  const lossy = one.isKnown ? `round trip ${roundTrip(one.rtt) || "unknown"}, loss ${percent(one.loss)}` : "no figures";
  return `cost ${one.cost}, ${lossy}${one.isHalf ? ", one end alone knows it" : ""}`;
}

// Instances by name; none where no controller is, or its store is away: the mesh is shown all the same.
async function instances() {
  if (!session.controller) return new Map();
  const told = await get("instances").catch(error => say(`Instances: ${error.message}`, true));
  return new Map(told?.instances.map(one => [one.name, one]));
}

function ability({ name, enabled }) {
  const word = enabled ? "disable" : "enable";
  return action(enabled ? "Disable" : "Enable", async () => {
    await post(`instances/${encodeURIComponent(name)}/${word}`);
    return `${name} is ${word}d`;
  });
}

export function meshView(route) {
  const search = searchInput("");
  const found = el("output");
  const leave = () => { location.hash = "#/mesh"; };
  const [about, jobs] = [el("div"), el("div")];
  const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: leave }, "×");
  const panel = el("aside", { id: "panel", hidden: true, "aria-label": "Node" }, close, about, jobs);
  panel.addEventListener("keydown", ({ key }) => key === "Escape" && leave());
  const keys = LEGEND.map(([kind, words]) => el("span", { class: `key ${kind}` }, words));
  const choose = name => { location.hash = `#/mesh/${encodeURIComponent(name)}`; };
  const picture = new Picture(session.node, choose);
  let [mesh, shownName] = [null, null];

  function find() {
    const all = picture.search(search.value);
    fill(found, search.value === "" ? "" : `${count(all.length, "node")} found`);
    return all;
  }
  const enter = event => {
    event.preventDefault();
    find().slice(0, 1).forEach(choose);
  };
  search.addEventListener("input", find);

  async function showPanel(name) {
    const node = mesh.nodes.find(one => one.name === name);
    const isNew = shownName !== name;
    shownName = name;
    panel.hidden = false;
    panel.classList.toggle("left", picture.side(name) > 0.5);
    picture.mark(name);
    if (isNew) fill(jobs);
    const known = node ? aboutNode(node) : el("p", {}, "No such node is in the mesh now.");
    refill(about, el("h2", { tabindex: -1 }, named(name)), known);
    if (isNew) about.querySelector("h2").focus();
    if (node && session.controller) await showJobs(name);
  }

  function aboutNode(node) {
    const instance = mesh.byName.get(node.name);
    const [kind, words] = condition(node, instance);
    const links = mesh.links.filter(({ a, b }) => a === node.name || b === node.name);
    const line = one => el("tr", { class: linkKind(one) === "bad" && "bad" },
      [nodeLink(one.a === node.name ? one.b : one.a), roundTrip(one.rtt), one.isKnown && percent(one.loss), one.cost]
        .map(cell => el("td", {}, cell)));
    const heads = ["Link to", "Round trip", "Loss", "Cost"].map(head => el("th", { scope: "col" }, head));
    const isDirect = node.next_hop === node.name;
    const used = instance && usage(instance.consumed_capacity, instance.capacity, "Used capacity");
    return [
      facts([
        ["State", state(words, kind)],
        ["Way", !node.own && node.reachable && (isDirect ? "a direct link" : ["through ", nodeLink(node.next_hop)])],
        ["Cost", node.own ? null : node.cost],
        ["Capacity", used && [used, ` forks, ${count(instance.jobs_running, "job")}`]],
        ["Groups", instance && names(instance.groups)],
        ["Errors", instance?.errors.map(text => el("p", { class: "error" }, text))],
        ["Work types", names(node.work_types)],
        ["Services", names(node.services)],
        ["Advertised", ago(node.last_advertised)],
      ]),
      instance && may("admin") && el("p", { class: "actions" }, ability(instance)),
      links.length > 0 && el("table", {}, el("thead", {}, el("tr", {}, heads)),
        el("tbody", {}, links.slice(0, MOST_LINKS).map(line))),
      links.length > MOST_LINKS && link(`#/links?filter=${encodeURIComponent(node.name)}`, `All ${links.length} links`),
    ];
  }

  async function showJobs(name) {
    const { jobs: all } = await get("jobs", { node: name, limit: 11 });
    if (shownName !== name) return;
    const item = job => el("li", {}, may("read") ? jobLink(job.id) : job.id, " ", named(job.name), " ", jobState(job));
    refill(jobs, el("h3", {}, "Jobs"), all.length > 0 ? el("ul", {}, all.slice(0, 10).map(item)) : "It has run none.",
      all.length > 10 && link(`#/jobs?node=${encodeURIComponent(name)}`, "All of its jobs"));
  }

  return {
    title: "Mesh",
    element: el("div", { class: "mesh" }, searchForm(enter, field("Find a node", search), found), picture.element,
      panel, el("p", { class: "note legend" }, keys)),
    hears: aboutMesh,
    async load() {
      const [nodes, links, byName] = await Promise.all([list("nodes"), list("links"), instances()]);
      mesh = { nodes, links: links.map(summary), byName };
      picture.show(
        mesh.nodes.map(node => {
          const [kind, words] = condition(node, mesh.byName.get(node.name));
          const own = mesh.links.filter(({ a, b }) => a === node.name || b === node.name).length;
          return { name: node.name, kind: node.own ? `${kind} own` : kind, about: `${words}, ${count(own, "link")}` };
        }),
        mesh.links.map(one => ({ a: one.a, b: one.b, kind: linkKind(one), about: aboutLink(one) })));
      find();
      if (route.name) await showPanel(route.name);
    },
    // Another node of the same picture, or none.
    go(other) {
      route = other;
      if (other.name) return;
      panel.hidden = true;
      picture.mark(null);
      picture.focus(shownName);
      shownName = null;
    },
    close: () => picture.close(),
  };
}

// A table below a field that leaves rows out, by words that one of them has.
function filtered(table, route, words) {
  const input = searchInput(route.query.get("filter") ?? "");
  let rows = [];
  const show = () => {
    const text = input.value.toLowerCase();
    table.show(rows.filter(row => words(row).some(word => word?.toLowerCase().includes(text))), "None is to be shown.");
  };
  input.addEventListener("input", show);
  return {
    element: el("div", {}, searchForm(event => event.preventDefault(), field("Filter", input)), table.element),
    show(all) {
      rows = all;
      show();
    },
  };
}

export function linksView(route) {
  const table = new Table("Links", [
    { head: "Between", cell: one => nodeLink(one.a) },
    { head: "and", cell: one => nodeLink(one.b) },
    { head: "State", cell: linkState },
    { head: "Round trip", cell: one => roundTrip(one.rtt) },
    { head: "Loss", cell: one => one.isKnown && percent(one.loss) },
    { head: "Cost", cell: one => one.cost },
    { head: "Transport", wide: true, cell: one => one.transport },
    { head: "Queued", wide: true, cell: one => one.isKnown && size(one.queued) },
    { head: "Dropped", wide: true, cell: one => one.isKnown && one.dropped },
    { head: "There", wide: true, cell: one => one.there != null && size(one.there) },
    { head: "Back", wide: true, cell: one => one.back != null && size(one.back) },
    { head: "Asked", wide: true, cell: one => ago(one.asked) },
  ], one => JSON.stringify([one.a, one.b]));
  const all = filtered(table, route, one => [one.a, one.b, one.transport]);
  const rank = one => ["bad", "half", "ok"].indexOf(linkKind(one));
  return {
    title: "Links",
    element: all.element,
    hears: event => event.event.startsWith("link."),
    load: async () => all.show((await list("links")).map(summary).sort((a, b) => rank(a) - rank(b))),
  };
}

export function nodesView(route) {
  const of = one => one.instance;
  const used = one => of(one) && usage(of(one).consumed_capacity, of(one).capacity, `Used capacity of ${one.name}`);
  const way = one => one.next_hop && one.next_hop !== one.name && ["through ", named(one.next_hop)];
  const table = new Table("Nodes", [
    { head: "Node", cell: one => [nodeLink(one.name), one.own && " (this node)"] },
    { head: "State", cell: one => state(one.words, one.kind) },
    { head: "Capacity", cell: used },
    { head: "Jobs", cell: one => of(one)?.jobs_running > 0 && of(one).jobs_running },
    { head: "Groups", wide: true, cell: one => of(one) && names(of(one).groups, 3) },
    { head: "Way", wide: true, cell: way },
    { head: "Work types", wide: true, cell: one => names(one.work_types, 3) },
    { head: "Errors", wide: true, cell: one => of(one)?.errors.map(text => el("p", { class: "error" }, text)) },
    ...(may("admin") && session.controller ? [{ head: "Change", cell: one => of(one) && ability(of(one)) }] : []),
  ], one => one.name);
  const all = filtered(table, route, one => [one.name, one.words, ...one.work_types, ...(of(one)?.groups ?? [])]);
  return {
    title: "Nodes",
    element: all.element,
    hears: aboutMesh,
    async load() {
      const [nodes, byName] = await Promise.all([list("nodes"), instances()]);
      const known = new Set(nodes.map(one => one.name));
      // An instance may be away for longer than the mesh remembers it.
      const gone = [...byName.keys()].filter(name => !known.has(name));
      const away = gone.map(name => ({ name, reachable: false, work_types: [] }));
      const rows = [...nodes, ...away].map(node => {
        const [kind, words] = condition(node, byName.get(node.name));
        return { ...node, instance: byName.get(node.name), kind, words };
      });
      const rank = one => ["bad", "warn", "off", "ok"].indexOf(one.kind);
      all.show(rows.sort((a, b) => rank(a) - rank(b)));
    },
  };
}

export function groupsView() {
  const group = one => [link(`#/jobs?group=${encodeURIComponent(one.name)}`, named(one.name)),
    one.is_container_group && " (containers)"];
  const members = one =>
    one.is_container_group ? named(one.cluster ?? "") : names(one.members.map(member => member.name));
  const table = new Table("Groups", [
    { head: "Group", cell: group },
    { head: "Capacity", cell: one => usage(one.consumed_capacity, one.capacity, `Used capacity of ${one.name}`) },
    { head: "Jobs", cell: one => one.jobs_running },
    { head: "Most jobs", wide: true, cell: one => one.max_concurrent_jobs || "none" },
    { head: "Most forks", wide: true, cell: one => one.max_forks || "none" },
    { head: "Instances", cell: members },
  ], one => one.name);
  return {
    title: "Groups",
    element: table.element,
    hears: event => ["instance.state", "job.state"].includes(event.event),
    load: async () => table.show((await get("groups")).groups),
  };
}

export function doctorView() {
  const report = el("div");
  const kinds = { error: "bad", warning: "warn", "not asked": "off" };
  const finding = one => el("li", {},
    el("h2", {}, state(one.severity, kinds[one.severity] ?? "warn"), " ", one.where && [named(one.where), ": "],
      el("bdi", {}, one.what)),
    one.remedy && el("p", {}, "Remedy: ", one.remedy));
  async function examine() {
    const { findings } = await get("doctor");
    const order = Object.keys(kinds);
    findings.sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
    const sum = findings.length > 0 ? `${count(findings.length, "finding")} on ${session.node}.`
      : `Nothing is wrong with ${session.node}.`;
    fill(report, el("p", {}, `${sum} meshctl doctor NODE examines another one and the way there.`),
      findings.length > 0 && el("ol", {}, findings.map(finding)));
    return sum;
  }
  return {
    title: "Doctor",
    element: el("div", {}, el("p", { class: "actions" }, action("Examine again", examine)), report),
    hears: () => false,
    // Seconds: an examination looks at much.
    every: 600,
    load: examine,
  };
}
