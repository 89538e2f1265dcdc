// The views of the mesh: its picture with what is known of one node, links, nodes, groups, and what the doctor finds.
// It owns what counts as wrong with a node or a link, so that every view says the same of it.

import { get, list, may, post, session } from "./api.js";
import {
  Table, action, count, el, facts, field, fill, link, moment, named, names, nodeLink, refill, say, searchForm,
  searchInput, size, state, usage,
} from "./dom.js";
import { ending, enrolment } from "./enrol.js";
import { lastJobs } from "./jobs.js";
import { causeOf, causes, linksAndOutages } from "./outages.js";
import { Picture } from "./topology.js";

// Milliseconds within which a node is examined, also by way of this one.
const EXAMINED = 60_000;
const aboutMesh = ({ event }) => /^(link|node|instance|host)\./.test(event) || event === "job.state";
const SHAPES = [["control", "control node"], ["hop", "hop"], ["execution", "execution node"]];
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

// What a node is there for; it has a shape in the picture.
function role(node, instance) {
  const type = instance?.node_type ?? (node.own && session.controller ? "control" : "");
  if (["control", "hybrid"].includes(type)) return "control";
  return type === "execution" || (type === "" && node.work_types.length > 0) ? "execution" : "hop";
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
  };
}

// What a link is like, with the class of its line.
const LINKS = { broken: "bad", lossy: "bad", "one-sided": "warn", "out of reach": "off", up: "ok" };
const linkKind = one => (one.broken ? "broken" : one.isAway ? "out of reach" : one.loss > 0 ? "lossy"
  : one.isHalf ? "one-sided" : "up");
const linkState = one => state(linkKind(one), LINKS[linkKind(one)]);
const LINK_COLUMNS = [
  { head: "State", cell: one => [linkState(one), one.since && [" since ", moment(one.since)]] },
  { head: "Round trip", cell: one => roundTrip(one.rtt) },
  { head: "Loss", cell: one => one.isKnown && percent(one.loss) },
  { head: "Cost", cell: one => one.cost },
];
const linkKey = ({ a, b }) => JSON.stringify([a, b]);
const worstFirst = (a, b) => Object.keys(LINKS).indexOf(linkKind(a)) - Object.keys(LINKS).indexOf(linkKind(b));

function aboutLink(one) {
  const lossy = one.isKnown ? `round trip ${roundTrip(one.rtt) || "unknown"}, loss ${percent(one.loss)}` : "no figures";
  const since = one.since ? ` since ${new Date(one.since).toLocaleString()}` : "";
  if (one.broken) return `broken${since}${one.reason ? `: ${one.reason}` : ""}`;
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
  const [about, jobs, lost] = [el("div"), el("div"), el("div", { class: "causes", role: "status" })];
  const close = el("button", { type: "button", class: "close", "aria-label": "Close", onclick: leave }, "×");
  const panel = el("aside", { id: "panel", hidden: true, "aria-label": "Node" }, close, about, jobs);
  panel.addEventListener("keydown", ({ key }) => key === "Escape" && leave());
  const keys = [...SHAPES, ...LEGEND].map(([kind, words]) => el("span", { class: `key ${kind}` }, words));
  const choose = name => { location.hash = `#/mesh/${encodeURIComponent(name)}`; };
  const picture = new Picture(session.node, choose);
  let [mesh, shownName, last] = [null, null, null];

  function find() {
    const all = picture.search(search.value);
    fill(found, search.value === "" ? "" : `${count(all.length, "node")} found`);
    return all;
  }
  const enter = event => { event.preventDefault(); find().slice(0, 1).forEach(choose); };
  search.addEventListener("input", find);

  async function showPanel(name) {
    const node = mesh.nodes.find(one => one.name === name);
    const isNew = shownName !== name;
    shownName = name;
    panel.hidden = false;
    picture.mark(name);
    if (isNew) last = lastJobs("Jobs", `node=${encodeURIComponent(name)}`);
    if (isNew) fill(jobs, session.controller && last.element);
    const known = node ? aboutNode(node) : el("p", {}, "No such node is in the mesh now.");
    refill(about, el("h2", { tabindex: -1 }, named(name)), known);
    if (isNew) about.querySelector("h2").focus();
    if (session.controller) await last.load();
  }

  function aboutNode(node) {
    const instance = mesh.byName.get(node.name);
    const [kind, words] = condition(node, instance);
    const links = mesh.links.filter(({ a, b }) => a === node.name || b === node.name);
    const table = new Table("Links", [
      { head: "Link to", cell: one => nodeLink(one.a === node.name ? one.b : one.a) }, ...LINK_COLUMNS], linkKey);
    table.show(links);
    const isDirect = node.next_hop === node.name;
    const used = instance && usage(instance.consumed_capacity, instance.capacity, "Used capacity");
    return [
      facts([
        ["State", state(words, kind)],
        ["Cause", !node.reachable && causeOf(mesh.told, node.name)],
        ["Way", !node.own && node.reachable && (isDirect ? "a direct link" : ["through ", nodeLink(node.next_hop)])],
        ["Cost", node.own ? null : node.cost],
        ["Capacity", used && [used, ` forks, ${count(instance.jobs_running, "job")}`]],
        ["Groups", instance && names(instance.groups)],
        ["Errors", instance?.errors.map(text => el("p", { class: "error" }, text))],
        ["Work types", names(node.work_types)],
        ["Services", names(node.services)],
        ["Advertised", moment(node.last_advertised)],
        ["Doctor", may("read") && link(`#/doctor/${encodeURIComponent(node.name)}`, "What is wrong with it")],
      ]),
      instance && may("admin") && el("p", { class: "actions" }, ability(instance)),
      links.length > 0 && table.element,
    ];
  }

  return {
    title: "Mesh",
    fills: true,
    element: el("div", { class: "mesh" }, searchForm(enter, field("Find a node", search), picture.tools, found),
      el("div", { class: "stage" }, picture.element, lost, panel), el("p", { class: "note legend" }, keys)),
    hears: aboutMesh,
    async load() {
      const [nodes, [links, told], byName] = await Promise.all([list("nodes"), linksAndOutages(), instances()]);
      refill(lost, causes(told));
      mesh = { nodes, links: links.map(summary).sort(worstFirst), byName, told };
      picture.show(
        mesh.nodes.map(node => {
          const instance = mesh.byName.get(node.name);
          const [[kind, words], shape] = [condition(node, instance), role(node, instance)];
          const own = mesh.links.filter(({ a, b }) => a === node.name || b === node.name).length;
          return {
            name: node.name, kind: node.own ? `${kind} own` : kind, shape, isWrong: kind === "bad",
            about: `${shape === "hop" ? shape : `${shape} node`}, ${words}, ${count(own, "link")}`,
            x: node.x, y: node.y, parent: node.parent,
          };
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
    ...LINK_COLUMNS,
    { head: "Why", wide: true, cell: one => one.reason },
    { head: "Transport", wide: true, cell: one => one.transport },
    { head: "Queued", wide: true, cell: one => one.isKnown && size(one.queued) },
    { head: "Dropped", wide: true, cell: one => one.isKnown && one.dropped },
  ], linkKey);
  const all = filtered(table, route, one => [one.a, one.b, one.transport, linkKind(one)]);
  return {
    title: "Links",
    element: all.element,
    hears: event => /^(link|node)\./.test(event.event),
    load: async () => all.show((await linksAndOutages())[0].map(summary).sort(worstFirst)),
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
    { head: "Jobs", wide: true, cell: one => of(one)?.jobs_running > 0 && of(one).jobs_running },
    { head: "Groups", wide: true, cell: one => of(one) && names(of(one).groups, 3) },
    { head: "Way", wide: true, cell: way },
    { head: "Work types", wide: true, cell: one => names(one.work_types, 3) },
    { head: "Errors", wide: true, cell: one => of(one)?.errors.map(text => el("p", { class: "error" }, text)) },
    ...(may("admin") && session.controller ? [
      { head: "Certificate until", wide: true, cell: one => ending(one.ends) },
      { head: "Change", cell: one => of(one) && ability(of(one)) }] : []),
  ], one => one.name);
  const [joining, lost] = [enrolment(), el("div", { role: "status" })];
  const all = filtered(table, route, one => [one.name, one.words, ...one.work_types, ...(of(one)?.groups ?? [])]);
  return {
    title: "Nodes",
    element: el("div", {}, lost, joining.element, all.element),
    hears: aboutMesh,
    async load() {
      const [nodes, byName, ends, told] =
        await Promise.all([list("nodes"), instances(), joining.load(), get("outages")]);
      refill(lost, causes(told));
      const first = new Set(told.outages.flatMap(one => one.lost));
      const known = new Set(nodes.map(one => one.name));
      // A node may be away for longer than the mesh remembers it.
      const gone = [...new Set([...byName.keys(), ...ends.keys()])].filter(name => !known.has(name));
      const rows = [...nodes, ...gone.map(name => ({ name, reachable: false, work_types: [] }))].map(node => {
        const [kind, words] = condition(node, byName.get(node.name));
        return { ...node, instance: byName.get(node.name), ends: ends.get(node.name), kind, words };
      });
      const rank = one => (first.has(one.name) ? -1 : ["bad", "warn", "off", "ok"].indexOf(one.kind));
      all.show(rows.sort((a, b) => rank(a) - rank(b)));
    },
  };
}

// What is wrong with this node, or with the one that the address names.
export function doctorView(route) {
  const node = route.name ?? session.node;
  const [report, all] = [el("div"), el("datalist", { id: "all-nodes" })];
  const wanted = el("input", { list: "all-nodes", required: true, value: node, autocomplete: "off" });
  const choose = event => {
    event.preventDefault();
    location.hash = `#/doctor/${encodeURIComponent(wanted.value.trim())}`;
  };
  const kinds = { error: "bad", warning: "warn", "not asked": "off" };
  const finding = one => el("li", {},
    el("h2", {}, state(one.severity, kinds[one.severity] ?? "warn"), " ", one.where && [named(one.where), ": "],
      el("bdi", {}, one.what)),
    one.remedy && el("p", {}, "Remedy: ", el("bdi", {}, one.remedy)));
  async function examine() {
    const { findings } = await get("doctor", { node: route.name }, EXAMINED);
    const order = Object.keys(kinds);
    findings.sort((a, b) => order.indexOf(a.severity) - order.indexOf(b.severity));
    const sum = findings.length > 0 ? `${count(findings.length, "finding")} on ${node}.`
      : `Nothing is wrong with ${node}.`;
    fill(report, el("p", {}, `${sum} meshctl doctor NODE examines the way there as well.`),
      findings.length > 0 && el("ol", {}, findings.map(finding)));
    return sum;
  }
  return {
    title: "Doctor",
    element: el("div", {}, searchForm(choose, field("Node", wanted), all, el("button", { type: "submit" }, "Examine"),
      action("Again", examine)), report),
    hears: () => false,
    // Seconds: an examination looks at much.
    every: 600,
    async load() {
      if (report.childElementCount === 0) fill(report, el("p", {}, `${node} is being examined …`));
      fill(all, (await list("nodes")).map(({ name }) => el("option", { value: name })));
      await examine().catch(async error => {
        fill(report, causeOf(await get("outages"), node));
        throw error;
      });
    },
  };
}
