// Draws what /api/live tells. Text from nodes is set as text, never as HTML. Elements are kept and changed in place, so
// that focus and scrolling stay where they are, and what nobody has opened is not drawn.
"use strict";

const STATES = ["stuck", "damaged", "waiting", "formed", "idle", "closed"];
const STEP = 200; // Rows that are drawn at once.
const AGAIN = 5000;
const REREAD = 1000;

const get = (id) => document.getElementById(id);
const cards = new Map(); // By run id.
const hidden = {};
let endpoint = "";
let offset = 0; // What to add to the server's clock, in seconds, to get this one's.
let only = "";
let lostAt = 0;

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function now() {
  return Date.now() / 1000;
}

function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor((s % 86400) / 3600) + " h";
}

const two = (number) => String(number).padStart(2, "0");

function clock(seconds) {
  const at = new Date(seconds * 1000);
  const time = two(at.getHours()) + ":" + two(at.getMinutes()) + ":" + two(at.getSeconds());
  const day = at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate());
  return at.toDateString() === new Date().toDateString() ? time : day + " " + time;
}

// An absolute time, and for how long that is past; the latter goes on by itself.
function moment(at) {
  const element = make("time");
  element.dateTime = new Date(at * 1000).toISOString();
  element.dataset.at = at;
  element.textContent = clock(at) + ", " + duration(now() - at) + " ago";
  return element;
}

function ranges(numbers) {
  const found = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([a, b]) => (a === b ? String(a) : a + "-" + b)).join(", ");
}

function row(tag, cells, names = []) {
  const line = make("tr");
  cells.forEach((cell, i) => {
    const made = make(tag, cell, names[i]);
    if (tag === "th") made.scope = "col";
    line.append(made);
  });
  return line;
}

function table(header, caption) {
  const made = make("table");
  const head = make("thead");
  made.append(make("caption", caption, "unseen"), head, make("tbody"));
  head.append(row("th", header));
  return made;
}

const quoted = (text) => (/^[\w.:/@%+=,-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

function say(text) {
  get("said").textContent = "";
  setTimeout(() => (get("said").textContent = text), 50);
}

async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // Without TLS browsers have no clipboard: select it, and let the old way try.
    getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) {
      say("selected; press Ctrl+C to copy");
      return;
    }
  }
  button.textContent = "Copied";
  say("copied");
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function command(text) {
  const line = make("div", undefined, "command");
  const code = make("code", text);
  const button = make("button", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", "Copy the command " + text);
  button.addEventListener("click", () => copy(code, button));
  line.append(code, button);
  return line;
}

// A box that scrolls, with the keyboard, too.
function region(name) {
  const box = make("div", undefined, "scroll tall");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", name);
  return box;
}

const counted = (count, noun) => count + " " + noun + (count === 1 ? "" : "s");

// A run: one line, and what is below it once it is opened.
class Card {
  constructor(id) {
    this.id = id;
    this.item = make("li");
    this.details = make("details", undefined, "run");
    const summary = make("summary");
    this.state = make("span", "", "state");
    this.headline = make("span", "", "headline");
    this.since = make("span", "", "since");
    summary.append(this.state, make("h2", id), this.headline, this.since);
    this.body = make("div", undefined, "body");
    this.details.append(summary, this.body);
    this.item.append(this.details);
    this.details.addEventListener("toggle", () => this.draw());
    this.nodes = null;
  }

  take(run) {
    this.run = run;
    this.text = [run.id, ...run.why, ...run.unsettled.map((node) => node.node), ...run.changes.map((c) => c.what)]
      .join("\n")
      .toLowerCase();
    put(this.headline, run.why[0] || "");
    this.tick();
    this.draw();
  }

  get waited() {
    return this.run.waiting_since === null ? 0 : now() - this.run.waiting_since - offset;
  }

  tick() {
    const run = this.run;
    let state = run.state;
    if (state === "stuck" || state === "waiting") state = this.waited > run.patience ? "stuck" : "waiting";
    if (state !== this.now) {
      this.now = state;
      this.item.className = state;
      put(this.state, state);
      order();
    }
    const here = counted(run.here, "node");
    put(this.since, state === "stuck" || state === "waiting" ? "for " + duration(this.waited) : run.state === "damaged" ? "" : here);
  }

  draw() {
    if (!this.details.open || this.drawn === this.run) return;
    this.drawn = this.run;
    const run = this.run;
    const about = make("div");
    for (const line of run.why.slice(1)) about.append(make("p", line, "why"));
    about.append(make("p", this.facts(), "why"));
    const commands = make("div");
    commands.append(make("h3", "Commands"));
    const where = quoted(endpoint) + " --run-id " + quoted(run.id);
    commands.append(command("rdzv status " + where), command("rdzv watch " + where));
    const changes = make("div");
    changes.append(make("h3", "Latest changes"));
    const list = make("ol", undefined, "changes");
    for (const change of run.changes) {
      const item = make("li");
      item.append(moment(change.at + offset), " ", change.what);
      list.append(item);
    }
    if (!run.changes.length) list.append(make("li", "none since the server started"));
    changes.append(list);
    const left = make("div");
    left.append(about);
    if (run.unsettled.length) left.append(this.unsettled());
    const right = make("div");
    right.append(commands, changes);
    if (this.nodes === null) this.nodes = new Nodes(run.id);
    this.nodes.take(run);
    this.body.replaceChildren(left, right, this.nodes.element);
  }

  facts() {
    const run = this.run;
    const facts = ["round " + run.round];
    if (run.nodes) facts.push("sizes " + run.nodes);
    if (run.target !== null) facts.push("target " + run.target);
    if (run.domain) facts.push("domains by the label " + run.domain);
    for (const role of ["member", "back", "waiting", "spare", "foreign"]) {
      if (run.roles[role]) facts.push(run.roles[role] + " " + role);
    }
    if (run.absent) facts.push(run.absent + " absent");
    if (run.waiting_since !== null) facts.push("waiting since " + clock(run.waiting_since + offset));
    return facts.join(" · ");
  }

  unsettled() {
    const run = this.run;
    const made = table(["Node", "Role", "Rank"], "Nodes of run " + run.id + " that need attention");
    for (const node of run.unsettled) {
      const rank = node.rank === null ? "–" : String(node.rank);
      made.tBodies[0].append(row("td", [node.node, node.role, rank], ["", node.role]));
    }
    const box = make("div", undefined, "scroll");
    const total = run.absent + (run.roles.foreign || 0);
    const more = total > run.unsettled.length ? " (" + run.unsettled.length + " of " + total + ")" : "";
    box.append(make("h3", "Missing, or with other settings" + more), made);
    return box;
  }
}

// The nodes of a run: folded by domain and role; all of them once they are asked for.
class Nodes {
  constructor(id) {
    this.id = id;
    this.element = make("details", undefined, "nodes wide");
    this.title = make("summary");
    this.filter = make("input");
    this.filter.type = "search";
    this.filter.placeholder = "node, role, rank, label …";
    this.filter.setAttribute("aria-label", "Search the nodes of run " + id);
    this.filter.addEventListener("input", () => this.show(true));
    this.folded = region("Nodes of run " + id + " by role");
    this.all = region("All nodes of run " + id);
    this.more = make("button", "");
    this.more.type = "button";
    this.more.addEventListener("click", () => {
      this.most += 5 * STEP;
      this.show();
    });
    this.asOf = make("p", "", "why soft");
    this.element.append(this.title, this.asOf, this.folded, this.filter, this.all, this.more);
    this.element.addEventListener("toggle", () => this.read());
    this.rows = new Map();
    this.most = 5 * STEP;
    this.readAt = 0;
    this.found = null;
  }

  take(run) {
    const count = run.here + run.absent;
    put(this.title, "Show " + (count === 1 ? "the node" : "all " + count + " nodes"));
    this.read();
  }

  // At most once a second, and only while somebody looks.
  async read() {
    if (!this.element.open || this.isReading) return;
    this.isReading = true;
    await new Promise((done) => setTimeout(done, Math.max(0, this.readAt + REREAD - Date.now())));
    this.readAt = Date.now();
    try {
      const answer = await fetch("/api/run?id=" + encodeURIComponent(this.id), { cache: "no-store" });
      if (answer.ok) {
        this.found = await answer.json();
        put(this.asOf, "As of " + clock(this.readAt / 1000) + "; read again when the run changes.");
        this.show(true);
      }
    } catch {
      // The live connection says that the server is gone, and everything is read again when it is back.
    }
    this.isReading = false;
  }

  nodesNow() {
    const { status, labels, last_seen: seen } = this.found;
    if (status === null) return [];
    const unlabelled = new Set(status.unlabelled);
    const nodes = status.absent.map((node) => ({ ...node, role: status.closed ? "left" : "absent", address: "", labels: {} }));
    for (const node of status.here) {
      const own = labels[node.node] || {};
      nodes.push({ ...node, labels: own, seen: seen[node.node], unlabelled: unlabelled.has(node.node) });
    }
    return nodes;
  }

  show(isNew) {
    if (this.found === null) return;
    if (isNew) {
      this.list = this.nodesNow();
      this.fold(this.list);
    }
    const wanted = this.filter.value.trim().toLowerCase();
    const chosen = this.list.filter((node) => !wanted || this.cells(node).join("\n").toLowerCase().includes(wanted));
    if (!this.table) {
      this.table = table(["Node", "Role", "Rank", "Address", "Labels", "Last keep-alive"], "Nodes of run " + this.id);
      this.all.append(this.table);
    }
    const shown = chosen.slice(0, this.most);
    const body = this.table.tBodies[0];
    const kept = new Set(shown.map((node) => node.node));
    for (const [node, line] of this.rows) {
      if (!kept.has(node)) {
        line.remove();
        this.rows.delete(node);
      }
    }
    this.fill(body, shown, 0);
    this.more.hidden = chosen.length <= shown.length;
    put(this.more, "Show more (" + (chosen.length - shown.length) + " are left)");
  }

  // Draws some rows for each frame, so that a thousand do not make the page stutter.
  fill(body, shown, from) {
    cancelAnimationFrame(this.frame);
    const end = Math.min(from + STEP, shown.length);
    for (let i = from; i < end; i++) {
      const node = shown[i];
      const cells = this.cells(node);
      let line = this.rows.get(node.node);
      if (!line) {
        line = row("td", cells, ["", node.role]);
        this.rows.set(node.node, line);
      } else {
        cells.forEach((cell, at) => put(line.cells[at], cell));
        line.cells[1].className = node.role;
      }
      if (body.children[i] !== line) body.insertBefore(line, body.children[i] || null);
    }
    if (end < shown.length) this.frame = requestAnimationFrame(() => this.fill(body, shown, end));
  }

  cells(node) {
    const { status } = this.found;
    const role = node.role + (node.unlabelled ? ", no label " + status.settings.domain : "");
    const labels = Object.entries(node.labels).map(([name, value]) => name + "=" + value);
    const coordinates = node.node === status.coordinator ? " (coordinator)" : "";
    const seen = node.seen === undefined ? "–" : clock(this.readAt / 1000 - node.seen);
    return [node.node + coordinates, role, node.rank === null ? "–" : String(node.rank), node.address, labels.join(", "), seen];
  }

  fold(nodes) {
    const { status } = this.found;
    const domain = status !== null && status.settings ? status.settings.domain : "";
    const groups = new Map();
    for (const node of nodes) {
      const place = domain ? node.labels[domain] || "–" : "";
      const key = place + "\n" + node.role;
      if (!groups.has(key)) groups.set(key, { place, role: node.role, ranks: [], count: 0, first: node.node, last: "" });
      const group = groups.get(key);
      group.count += 1;
      group.last = node.node;
      if (node.rank !== null) group.ranks.push(node.rank);
    }
    const header = [...(domain ? ["Domain (" + domain + ")"] : []), "Nodes", "Role", "Ranks", "First and last"];
    const made = table(header, "Nodes of run " + this.id + ", folded");
    for (const group of [...groups.values()].sort((a, b) => a.place.localeCompare(b.place, undefined, { numeric: true }))) {
      const names = group.count === 1 ? group.first : group.first + ", " + group.last;
      const cells = [...(domain ? [group.place] : []), String(group.count), group.role, ranges(group.ranks) || "–", names];
      made.tBodies[0].append(row("td", cells, domain ? ["", "", group.role] : ["", group.role]));
    }
    this.folded.replaceChildren(made);
  }
}

// The list

let isOrdering = false;

function order() {
  if (isOrdering) return;
  isOrdering = true;
  requestAnimationFrame(() => {
    isOrdering = false;
    arrange();
  });
}

function place(card) {
  return STATES.indexOf(card.now);
}

function arrange() {
  const wanted = get("search").value.trim().toLowerCase();
  const sorted = [...cards.values()].sort(
    (a, b) =>
      place(a) - place(b) ||
      (a.run.waiting_since ?? 0) - (b.run.waiting_since ?? 0) ||
      a.id.localeCompare(b.id, undefined, { numeric: true }),
  );
  const focused = document.activeElement;
  const list = get("runs");
  let shown = 0;
  sorted.forEach((card, i) => {
    card.item.hidden = Boolean((only && card.now !== only) || (wanted && !card.text.includes(wanted)));
    shown += card.item.hidden ? 0 : 1;
    if (list.children[i] !== card.item) list.insertBefore(card.item, list.children[i] || null);
  });
  if (document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true });
  summarize(sorted, shown, wanted);
}

function summarize(sorted, shown, wanted) {
  const counts = { ...hidden };
  for (const card of sorted) counts[card.now] = (counts[card.now] || 0) + 1;
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const runs = (count) => counted(count, "run");
  const stuck = counts.stuck || 0;
  const longest = sorted.length && sorted[0].now === "stuck" ? ", the longest for " + duration(sorted[0].waited) : "";
  let text = total ? runs(total) + ", none is stuck" : "No node has joined a run yet";
  if (stuck) text = stuck + " of " + runs(total) + (stuck === 1 ? " is stuck" : " are stuck") + longest;
  put(get("headline"), text);
  const title = (stuck ? "(" + stuck + " stuck) " : "") + "rdzv: runs";
  if (document.title !== title) document.title = title;
  const group = get("states");
  if (!group.children.length) {
    for (const state of ["", ...STATES]) {
      const button = make("button");
      button.type = "button";
      button.dataset.state = state;
      button.append(make("b"), " " + (state || "all"));
      button.addEventListener("click", () => {
        only = state === only ? "" : state;
        arrange();
      });
      group.append(button);
    }
  }
  for (const button of group.children) {
    const state = button.dataset.state;
    put(button.firstChild, String(state ? counts[state] || 0 : total));
    button.setAttribute("aria-pressed", String(only === state));
  }
  const beyond = total - sorted.length;
  const left = beyond > 0 ? "; " + beyond + " more are not listed, because they changed longest ago" : "";
  const isChosen = only || wanted;
  put(get("count"), isChosen ? runs(shown) + " of " + sorted.length + " shown" + left : left.slice(2));
}

function tick() {
  for (const card of cards.values()) card.tick();
  for (const element of document.querySelectorAll(".run[open] time")) {
    const at = Number(element.dataset.at);
    put(element, clock(at) + ", " + duration(now() - at) + " ago");
  }
  const first = get("runs").firstElementChild;
  if (first && first.className === "stuck") order(); // The headline says for how long.
  if (lostAt) put(get("server"), lostText());
}

// The connection

function take(news) {
  offset = now() - news.now;
  endpoint = news.server.endpoint;
  if (news.whole) {
    const known = new Set(news.runs.map((run) => run.id));
    for (const id of [...cards.keys()]) if (!known.has(id)) drop(id);
  }
  for (const id of news.gone) drop(id);
  for (const run of news.runs) {
    if (!cards.has(run.id)) cards.set(run.id, new Card(run.id));
    cards.get(run.id).take(run);
  }
  for (const state of STATES) hidden[state] = news.hidden[state] || 0;
  const { connections, sessions, revision } = news.server;
  const facts = ["live", endpoint, counted(connections, "connection"), counted(sessions, "session"), "revision " + revision];
  lostAt = 0;
  get("server").className = "";
  put(get("server"), facts.join(" · "));
  order();
}

function drop(id) {
  const card = cards.get(id);
  if (card) card.item.remove();
  cards.delete(id);
}

function lostText() {
  return "no connection to the server since " + clock(lostAt) + " (" + duration(now() - lostAt) + "); what is below may be out of date";
}

function connect() {
  const source = new EventSource("/api/live");
  source.onmessage = (event) => take(JSON.parse(event.data));
  source.onerror = () => {
    lostAt = lostAt || now();
    get("server").className = "lost";
    put(get("server"), lostText());
    if (source.readyState === EventSource.CLOSED) {
      source.close();
      setTimeout(connect, AGAIN); // Refused: it has all the readers that it takes, or wants the secret again.
    }
  };
}

get("search").addEventListener("input", order);
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    get("search").focus();
  } else if (event.key === "Escape" && event.target === get("search")) {
    get("search").value = "";
    order();
  }
});
setInterval(tick, 1000);
connect();
