// How much there is and what is wrong: as numbers in a line above every view, and the first view with the capacity of
// each group. It owns how a number is said and where it leads; the node counts.

import { get, session } from "./api.js";
import { Table, count, el, link, named, names, refill, span, usage } from "./dom.js";
import { lastJobs } from "./jobs.js";
import { causes } from "./outages.js";

// Numbers, each as its class, its words, and the address of those that are meant.
function numbers({ nodes, links, jobs }) {
  const lost = nodes.out_of_reach;
  const wrong = [["bad", links.broken, "broken"], ["bad", links.lossy, "lossy"], ["warn", links.one_sided, "one-sided"]]
    .filter(([, number]) => number > 0)
    .map(([kind, number, word]) => [kind, `${count(number, "link")} ${word}`, `#/links?filter=${word}`]);
  const waits = jobs?.oldest && span((Date.now() - Date.parse(jobs.oldest.created)) / 1000).replace(/ \d+ s$/, "");
  return [
    lost > 0 ? ["bad", `${lost} of ${count(nodes.all, "node")} out of reach`, "#/nodes?filter=out+of+reach"]
      : ["ok", `${count(nodes.all, "node")} in reach`, "#/nodes"],
    ...(wrong.length > 0 ? wrong : [["ok", `${count(links.all, "link")} up`, "#/links"]]),
    ...(jobs ? [
      [jobs.failed > 0 ? "bad" : "ok", `${jobs.failed} of ${jobs.failed + jobs.successful} jobs failed in 24 h`,
        "#/jobs?day=true&state=failed&state=error"],
      ["ok", `${jobs.running} running`, "#/jobs?state=running"],
      [jobs.waiting > 0 ? "warn" : "ok", waits ? `${jobs.waiting} waiting, the longest for ${waits}` : "none waiting",
        "#/jobs?state=pending&state=waiting"]] : []),
  ];
}

// The line above every view.
export async function showNumbers() {
  const told = numbers(await get("overview"));
  refill(document.getElementById("numbers"),
    told.map(([kind, words, route]) => el("li", {}, el("a", { class: kind, href: route }, words))));
}

export function overviewView() {
  const lost = el("div", { role: "status" });
  const failed = lastJobs("Failed last", "state=failed&state=error");
  const group = one => [link(`#/jobs?group=${encodeURIComponent(one.name)}`, named(one.name)),
    one.is_container_group && " (containers)"];
  const members = one =>
    one.is_container_group ? named(one.cluster ?? "") : names(one.members.map(member => member.name), 3);
  const most = one => [one.max_concurrent_jobs && count(one.max_concurrent_jobs, "job"),
    one.max_forks && count(one.max_forks, "fork")].filter(Boolean).join(", ");
  const groups = new Table("Capacity", [
    { head: "Group", cell: group },
    { head: "Capacity", cell: one => usage(one.consumed_capacity, one.capacity, `Used capacity of ${one.name}`) },
    { head: "Jobs", cell: one => one.jobs_running },
    { head: "At most", wide: true, cell: most },
    { head: "Instances", wide: true, cell: members },
  ], one => one.name);
  const work = el("div", { hidden: true }, failed.element, el("section", {}, groups.element));

  return {
    title: "Overview",
    element: el("div", {}, lost, work),
    hears: event => /^(link|node|instance|job)\./.test(event.event),
    async load() {
      refill(lost, causes(await get("outages")));
      work.hidden = !session.controller;
      if (session.controller) groups.show((await Promise.all([get("groups"), failed.load()]))[0].groups);
    },
  };
}
