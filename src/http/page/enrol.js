// What the authority of the mesh knows, for administrators: hosts that ask to become nodes, with what to do about them,
// open invitations, and when certificates end. It owns what a person compares before a host is let in.

import { get, may, post, session } from "./api.js";
import { Table, action, el, moment, named, say, state } from "./dom.js";

// Milliseconds before its end at which a certificate should have been renewed.
const SOON = 30 * 86_400_000;

// The end of a certificate.
export function ending(time) {
  const left = Date.parse(time) - Date.now();
  return time && state(new Date(time).toLocaleDateString(), left < 0 ? "bad" : left < SOON ? "warn" : "ok");
}

const decide = ({ node, fingerprint }, label, question) => action(label, async () => {
  const { act } = await post(`enrolment/${encodeURIComponent(node)}/${label.toLowerCase()}`, { fingerprint });
  return `${node}: ${act === "node.approve" ? "approved, it joins within some seconds" : "rejected"}`;
}, question);

const ask = ({ node, address, fingerprint }) =>
  `Does ${node} (${address}) show the fingerprint ${fingerprint}? Approve it only then.`;

export function enrolment() {
  const hosts = new Table("Hosts that ask to become nodes", [
    { head: "Host", cell: one => named(one.node) },
    { head: "Address", cell: one => named(one.address) },
    { head: "Fingerprint", cell: one => el("code", {}, one.fingerprint) },
    { head: "Since", wide: true, cell: one => moment(one.since) },
    { head: "Change", cell: one => [decide(one, "Approve", ask(one)), " ", decide(one, "Reject")] },
  ], one => one.fingerprint);
  const invites = new Table("Open invitations", [
    { head: "Node", cell: one => named(one.node) },
    { head: "Role", cell: one => one.role },
    { head: "Used", cell: one => `${one.used} of ${one.uses}` },
    { head: "Expires", cell: one => new Date(one.expires).toLocaleString() },
  ], one => one.node);
  const element = el("section", { hidden: true }, hosts.element, invites.element);
  // Shows it, and returns when certificates end, by node.
  async function load() {
    const mayAsk = may("admin") && session.controller;
    const told = mayAsk && await get("enrolment").catch(error => say(`Enrolment: ${error.message}`, true));
    element.hidden = !told?.authority;
    if (element.hidden) return new Map();
    hosts.show(told.hosts.filter(one => one.state === "waits"));
    invites.show(told.invites);
    return new Map(told.nodes.map(one => [one.node, one.ends]));
  }
  return { element, load };
}
