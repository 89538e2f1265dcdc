// The form that launches a playbook of a git project. It owns the bytes of a submission: the header, and the stream of
// `ansible-runner transmit` with a zip inside, as docs/controller-reference.md describes them; and what the browser
// keeps of a launch for the next one: nothing of variables and secrets, and the inventory as long as the tab is open.

import { get, post, session } from "./api.js";
import { el, field, fill, say } from "./dom.js";

// The runner gives ansible a terminal at which nobody sits: with an empty standard input a playbook that asks goes on.
const NO_TERMINAL = `import os

from ansible.plugins.callback import CallbackBase

os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "no_terminal"
    CALLBACK_NEEDS_ENABLED = False
`;
// A playbook runs in project/, one below the rest.
const ENVIRONMENT = JSON.stringify({ ANSIBLE_CALLBACK_PLUGINS: "../env/callback" });
// Of zip: the signatures of its parts, version 2.0, names in UTF-8, made on Unix, a file that its owner alone reads.
const [FILE, ENTRY, END] = [0x04034b50, 0x02014b50, 0x06054b50];
const [VERSION, UTF8, UNIX, MODE] = [20, 0x800, 3 << 8, 0o100600];

const CRC = Uint32Array.from({ length: 256 }, (_, at) => {
  let value = at;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

export const crc32 = bytes => ~bytes.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ (sum >>> 8), -1) >>> 0;

// Numbers as little-endian bytes: [value, bytes] each.
const numbers = pairs =>
  pairs.flatMap(([value, size]) => Array.from({ length: size }, (_, at) => (value >>> (8 * at)) & 255));

// A zip of files that are not compressed: [name, text] each.
export function zip(files, now = new Date()) {
  const day = (Math.max(now.getFullYear() - 1980, 0) << 9) | ((now.getMonth() + 1) << 5) | now.getDate();
  const time = (now.getHours() << 11) | (now.getMinutes() << 5) | (now.getSeconds() >> 1);
  const [parts, entries] = [[], []];
  let at = 0;
  for (const [path, text] of files) {
    const [name, body] = [path, text].map(one => new TextEncoder().encode(one));
    const sizes = [[body.length, 4], [body.length, 4], [name.length, 2], [0, 2]];
    const facts = [[VERSION, 2], [UTF8, 2], [0, 2], [time, 2], [day, 2], [crc32(body), 4], ...sizes];
    const head = numbers([[FILE, 4], ...facts]);
    parts.push(head, name, body);
    const more = [[0, 2], [0, 2], [0, 2], [MODE << 16, 4], [at, 4]];
    entries.push(numbers([[ENTRY, 4], [UNIX | VERSION, 2], ...facts, ...more]), name);
    at += head.length + name.length + body.length;
  }
  const size = entries.reduce((sum, part) => sum + part.length, 0);
  const end = numbers([[END, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [at, 4], [0, 2]]);
  return Uint8Array.from([...parts, ...entries, end].flatMap(part => [...part]));
}

const base64 = bytes => btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));

// What `work submit controller` gets.
export function submission({ inventory, variables, vault, ...words }) {
  const trimmed = Object.entries(words).map(([key, value]) => [key, value.trim()]);
  const { url, revision, credential, playbook, group, name, limit, tags, skip_tags, check, diff } =
    Object.fromEntries(trimmed);
  const flags = [check && "--check", diff && "--diff", vault && "--vault-id=default@../env/vault_0"].filter(Boolean);
  const given = (key, value) => (value ? { [key]: value } : {});
  const header = {
    controller: 1,
    ...given("name", name),
    ...given("groups", group && { launch: [group] }),
    sync: { url, ...given("revision", revision), ...given("credential", credential) },
  };
  const kwargs = {
    ident: crypto.randomUUID(), playbook, ...given("limit", limit), ...given("tags", tags),
    ...given("skip_tags", skip_tags), ...given("cmdline", flags.join(" ")),
  };
  const files = [
    ["inventory/hosts", inventory.endsWith("\n") ? inventory : `${inventory}\n`],
    ...(variables.trim() ? [["env/extravars", variables]] : []),
    ...(vault ? [["env/vault_0", vault]] : []),
    ["env/envvars", ENVIRONMENT],
    ["env/callback/no_terminal.py", NO_TERMINAL],
  ];
  const packed = zip(files);
  const lines = [header, { kwargs }, { zipfile: packed.length }].map(line => `${JSON.stringify(line)}\n`).join("");
  return `${lines}${base64(packed)}${JSON.stringify({ eof: true })}\n`;
}

// The fields that the browser remembers, apart for each user.
const KEPT = [
  "url", "revision", "credential", "playbook", "limit", "tags", "skip_tags", "group", "name", "check", "diff",
];
const key = () => `meshd.launch.${session.node}.${session.who}`;

function kept() {
  try {
    const all = JSON.parse(localStorage.getItem(key())) ?? {};
    const fields = KEPT.filter(name => typeof all[name] === "string").map(name => [name, all[name]]);
    return { ...Object.fromEntries(fields), inventory: sessionStorage.getItem(key()) ?? "" };
  } catch {
    // Nothing is kept, or something else.
    return {};
  }
}

function keep(fields) {
  const all = Object.fromEntries(KEPT.filter(name => fields[name]).map(name => [name, fields[name]]));
  try {
    localStorage.setItem(key(), JSON.stringify(all));
    sessionStorage.setItem(key(), fields.inventory);
  } catch {
    // A browser that keeps nothing: the form is empty the next time.
  }
}

// What a job was launched with, as far as the node knows it. The inventory is that of the last launch of the project.
function again({ header, playbook, limit, tags, skip_tags, check }, last) {
  const { url, revision, credential } = header.sync;
  const inventory = last.url === url ? last.inventory : "";
  return {
    url, revision, credential, playbook, inventory, limit, tags, skip_tags, check: check && "true",
    group: header.groups?.launch?.[0], name: header.name, diff: "",
  };
}

export function launchView(route) {
  const usual = { autocomplete: "off", spellcheck: "false" };
  const text = (name, more = {}) => el("input", { name, ...usual, ...more });
  const lines = (name, more = {}) => el("textarea", { name, rows: 6, ...usual, ...more });
  const box = (name, words) =>
    el("label", { class: "check" }, el("input", { type: "checkbox", name, value: "true" }), words);
  const group = el("select", { name: "group" }, el("option", { value: "" }, "default"));
  const wrong = el("p", { class: "error", role: "alert" });
  let isFilled = false;
  const button = el("button", { type: "submit" }, "Launch");
  const form = el("form", { class: "launch", onsubmit: launch },
    field("Project (git)", text("url", { required: true, placeholder: "https://git.example/team/site.git" }),
      "https, ssh or, on this node's own disk, file"),
    field("Branch, tag or commit", text("revision"), "empty: what the repository itself takes"),
    field("Credential", text("credential"), "the name of a credential of this node, if git asks for a login"),
    field("Playbook", text("playbook", { required: true, placeholder: "site.yml" })),
    field("Inventory", lines("inventory", { required: true, placeholder: "[web]\nweb1.example\nweb2.example" }),
      "as in a file of ansible: INI or YAML"),
    field("Variables", lines("variables", { placeholder: "colour: green" }), "YAML or JSON, as extra variables"),
    field("Limit", text("limit"), "hosts or groups of the inventory; empty: all"),
    field("Tags", text("tags"), "with commas between; empty: all"), field("Skip tags", text("skip_tags")),
    field("Vault password", text("vault", { type: "password" }), "for this job alone"),
    el("p", { class: "actions" }, box("check", "Check only (-C)"), box("diff", "Show differences (-D)")),
    field("Instance group", group), field("Name", text("name"), "empty: that of the playbook"),
    wrong, el("p", { class: "actions" }, button));

  async function launch(event) {
    event.preventDefault();
    fill(wrong);
    button.disabled = true;
    try {
      const fields = Object.fromEntries(new FormData(form));
      const { id, unit } = await post("jobs", submission(fields));
      keep(fields);
      form.elements.vault.value = "";
      if (id == null) say(`The store is away: unit ${unit} becomes a job as soon as it is back.`);
      else location.hash = `#/jobs/${id}`;
    } catch (error) {
      fill(wrong, error.message);
      button.focus();
    }
    button.disabled = false;
  }

  return {
    title: "Launch",
    element: form,
    hears: () => false,
    async load() {
      const chosen = group.value;
      const { groups } = await get("groups");
      const others = groups.map(one => one.name).filter(name => !["default", "controlplane"].includes(name));
      fill(group, el("option", { value: "" }, "default"), others.map(name => el("option", { value: name }, name)));
      group.value = chosen;
      if (isFilled) return;
      isFilled = true;
      const job = route.query.get("job");
      const fields = job ? again(await get(`jobs/${encodeURIComponent(job)}`), kept()) : kept();
      for (const [name, value] of Object.entries(fields)) {
        const input = form.elements[name];
        if (input.type === "checkbox") input.checked = value === "true";
        else input.value = value ?? "";
      }
    },
  };
}
