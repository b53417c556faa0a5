// Polls /api/status once a second and draws it. Text from nodes is set as text, never as HTML.
"use strict";

const EVERY = 1000;
const SHOWN_NODES = 200;

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (name) element.className = name;
  return element;
}

function ago(seconds) {
  if (seconds === undefined) return "–";
  if (seconds < 60) return seconds.toFixed(1) + " s ago";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min ago";
  return Math.floor(seconds / 3600) + " h ago";
}

function row(tag, cells, names = []) {
  const line = make("tr");
  cells.forEach((cell, i) => line.append(make(tag, cell, names[i])));
  return line;
}

function nodes(run) {
  const table = make("table");
  const head = make("thead");
  head.append(row("th", ["Node", "Role", "Rank", "Address", "Last keep-alive"]));
  const body = make("tbody");
  const unlabelled = new Set(run.status.unlabelled);
  for (const node of run.status.here.slice(0, SHOWN_NODES)) {
    const coordinates = node.node === run.status.coordinator ? " (coordinator)" : "";
    const rank = node.rank === null ? "–" : String(node.rank);
    const role = node.role + (unlabelled.has(node.node) ? ", no label " + run.status.settings.domain : "");
    const cells = [node.node + coordinates, role, rank, node.address, ago(run.last_seen[node.node])];
    body.append(row("td", cells, ["", node.role]));
  }
  for (const node of run.status.absent.slice(0, SHOWN_NODES)) {
    const role = run.status.closed ? "left" : "absent";
    body.append(row("td", [node.node, role, String(node.rank), "", "gone"], ["", role]));
  }
  table.append(head, body);
  return table;
}

// A run's state in one word. A formed round whose members are returning to the barrier is "re-forming".
function stateOf(status) {
  if (status === null) return "broken";
  if (status.closed) return "closed";
  const unsettled = status.absent.length || status.here.some((node) => node.role === "back" || node.role === "waiting");
  return status.phase === "formed" && unsettled ? "re-forming" : status.phase;
}

function sizesOf(status) {
  const { min_nodes: min, max_nodes: max, step } = status.settings;
  if (min === max) return min + (min === 1 ? " node" : " nodes");
  return (step === 1 ? min + " to " + max : status.spec.nodes) + " nodes";
}

function factsOf(status) {
  const facts = ["round " + status.round, sizesOf(status)];
  if (status.spec.target !== null) facts.push("target " + status.spec.target);
  if (status.spec.generation) facts.push("generation " + status.spec.generation);
  facts.push(status.here.length + " here");
  for (const role of ["back", "waiting", "spare", "foreign"]) {
    const count = status.here.filter((node) => node.role === role).length;
    if (count) facts.push(count + " " + role);
  }
  if (status.held_back) facts.push(status.held_back + " held back");
  return facts.join(" · ");
}

function draw(run) {
  const section = make("section");
  const title = make("div", undefined, "title");
  const status = run.status;
  const state = stateOf(status);
  title.append(make("h2", run.run_id), make("span", state, "badge " + state));
  if (status !== null && status.settings) title.append(make("span", factsOf(status), "facts"));
  section.append(title);
  for (const line of run.why) section.append(make("p", line, "why"));
  const columns = make("div", undefined, "columns");
  const changes = make("ol");
  for (const change of run.changes) {
    const item = make("li");
    item.append(make("time", ago(change.seconds_ago)), " ", change.what);
    changes.append(item);
  }
  if (status !== null) columns.append(nodes(run));
  columns.append(changes);
  section.append(columns);
  return section;
}

async function refresh() {
  const server = document.getElementById("server");
  try {
    const answer = await fetch("/api/status", { cache: "no-store" });
    if (!answer.ok) throw new Error("the server answered " + answer.status);
    const now = await answer.json();
    const sections = now.runs.map(draw);
    if (!sections.length) sections.push(make("p", "No node has joined a run yet."));
    document.getElementById("runs").replaceChildren(...sections);
    const facts = [now.endpoint, now.connections + " connections", now.sessions + " sessions", "revision " + now.revision];
    server.textContent = facts.join(" · ");
    server.className = "";
  } catch (error) {
    server.textContent = "no connection to the server: " + error.message;
    server.className = "lost";
  }
  setTimeout(refresh, EVERY);
}

refresh();
