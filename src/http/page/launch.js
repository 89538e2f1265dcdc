// The form that launches a playbook of a git project. It owns the bytes of a submission: the header, and the stream of
// `ansible-runner transmit` with a zip inside, as docs/controller-reference.md describes them; and what the browser
// keeps of a launch for the next one: nothing of variables and secrets, and the inventory as long as the tab is open.

import { file, get, post, session } from "./api.js";
import { box, el, field, fill, goToJob, lines, onSend, text } from "./dom.js";

// Nobody sits at the terminal that the runner gives ansible: with this plugin a playbook that asks does not wait.
const PLUGIN = "no_terminal.py";
// A playbook runs in project/, one below the rest.
const ENVIRONMENT = JSON.stringify({ ANSIBLE_CALLBACK_PLUGINS: "../env/callback" });
// Of zip: the signatures of its parts; version 2.0, names in UTF-8, made on Unix, readable by its owner, its first day.
const [FILE, ENTRY, END] = [0x04034b50, 0x02014b50, 0x06054b50];
const [VERSION, UTF8, UNIX, MODE, DAY] = [20, 0x800, 3 << 8, 0o100600, 0x21];

const CRC = Uint32Array.from({ length: 256 }, (_, at) => {
  let value = at;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

const crc32 = bytes => ~bytes.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ (sum >>> 8), -1) >>> 0;

// Numbers as little-endian bytes: [value, bytes] each.
const numbers = pairs =>
  pairs.flatMap(([value, size]) => Array.from({ length: size }, (_, at) => (value >>> (8 * at)) & 255));

// A zip of files that are not compressed: [name, text] each.
function zip(files) {
  const [parts, entries] = [[], []];
  let at = 0;
  for (const [path, text] of files) {
    const [name, body] = [path, text].map(one => new TextEncoder().encode(one));
    const sizes = [[body.length, 4], [body.length, 4], [name.length, 2], [0, 2]];
    const facts = [[VERSION, 2], [UTF8, 2], [0, 2], [0, 2], [DAY, 2], [crc32(body), 4], ...sizes];
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

// What `work submit controller` gets. What is undefined is left out.
function submission({ inventory, variables, vault, ...words }, plugin) {
  const trimmed = Object.entries(words).map(([key, value]) => [key, value.trim() || undefined]);
  const { url, revision, credential, group, name, check, diff, ...kwargs } = Object.fromEntries(trimmed);
  const flags = [check && "--check", diff && "--diff", vault && "--vault-id=default@../env/vault_0"].filter(Boolean);
  const groups = group && { launch: [group] };
  const header = { controller: 1, name, groups, sync: { url, revision, credential } };
  const files = [
    ["inventory/hosts", inventory.endsWith("\n") ? inventory : `${inventory}\n`],
    ...(variables.trim() ? [["env/extravars", variables]] : []),
    ...(vault ? [["env/vault_0", vault]] : []),
    ["env/envvars", ENVIRONMENT],
    [`env/callback/${PLUGIN}`, plugin],
  ];
  const packed = zip(files);
  const job = { ident: crypto.randomUUID(), ...kwargs, cmdline: flags.join(" ") || undefined };
  const line = value => `${JSON.stringify(value)}\n`;
  const begin = [header, { kwargs: job }, { zipfile: packed.length }].map(line).join("");
  return `${begin}${base64(packed)}${line({ eof: true })}`;
}

// What the browser remembers, apart for each user.
const key = () => `meshd.launch.${session.node}.${session.who}`;

function kept() {
  try {
    return { ...JSON.parse(localStorage.getItem(key())), inventory: sessionStorage.getItem(key()) ?? "" };
  } catch {
    // Nothing is kept, or something else.
    return {};
  }
}

function keep({ inventory, variables, vault, ...fields }) {
  try {
    localStorage.setItem(key(), JSON.stringify(fields));
    sessionStorage.setItem(key(), inventory);
  } catch {
    // A browser that keeps nothing: the form is empty the next time.
  }
}

// What a job was launched with, as far as the node knows it. The inventory is that of the last launch of the project.
const again = ({ header, playbook, limit, tags, skip_tags, check }, last) => ({
  ...header.sync, playbook, limit, tags, skip_tags, check: check && "true", group: header.groups?.launch?.[0],
  name: header.name, inventory: last.url === header.sync.url ? last.inventory : "",
});

export function launchView(route) {
  const group = el("select", { name: "group" }, el("option", { value: "" }, "default"));
  let isFilled = false;
  const form = el("form", { class: "launch" },
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
    el("p", { class: "error", role: "alert" }),
    el("p", { class: "actions" }, el("button", { type: "submit" }, "Launch")));
  onSend(form, async fields => {
    const job = await post("jobs", submission(fields, await file(PLUGIN)));
    keep(fields);
    goToJob(job);
  });

  return {
    title: "Launch",
    element: form,
    hears: () => false,
    async load() {
      if (isFilled) return;
      const { groups } = await get("groups");
      const others = groups.map(one => one.name).filter(name => !["default", "controlplane"].includes(name));
      fill(group, el("option", { value: "" }, "default"), others.map(name => el("option", { value: name }, name)));
      isFilled = true;
      const job = route.query.get("job");
      const fields = job ? again(await get(`jobs/${encodeURIComponent(job)}`), kept()) : kept();
      for (const [name, value] of Object.entries(fields)) {
        const input = form.elements[name];
        if (input?.type === "checkbox") input.checked = value === "true";
        else if (input) input.value = value ?? "";
      }
    },
  };
}
