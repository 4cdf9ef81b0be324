// Asks the console for what it knows, every two seconds, and writes it into the tables of the page. What comes from servers is only ever set as text.
"use strict";

const EVERY_MS = 2000;
const EVENTS_MAX = 500;
const ROWS_MAX = 500;
const ANSWER_MAX_MS = 10000;

const byId = (id) => document.getElementById(id);

// ---- numbers and times for people ----

const scaled = (value, step, units) => {
  let at = 0;
  while (value >= step && at + 1 < units.length) { value /= step; at += 1; }
  const digits = at === 0 && Number.isInteger(value) ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return `${value.toFixed(digits)} ${units[at]}`.trim();
};
const bytes = (value) => value == null ? "–" : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const count = (value) => value == null ? "–" : scaled(value, 1000, ["", "k", "M", "G"]);
const took = (seconds) => seconds == null ? "–" : seconds < 0.001 ? `${(seconds * 1e6).toFixed(0)} µs`
  : seconds < 1 ? `${(seconds * 1e3).toFixed(1)} ms` : `${seconds.toFixed(1)} s`;
const age = (seconds) => seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min`
  : seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
const since = (seconds) => seconds ? age(Math.max(0, Date.now() / 1000 - seconds)) : "–";

// ---- elements ----

const element = (name, text, kind) => {
  const made = document.createElement(name);
  if (text != null) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const number = (text) => element("td", text, "number");
const cell = (text, kind) => element("td", text, kind);
const head = (text) => { const made = element("th", text); made.scope = "row"; return made; };
const inCell = (...parts) => { const made = element("td"); made.append(...parts); return made; };

const fill = (id, rows, nothing) => {
  const body = byId(id);
  const note = rows.length === 0 ? nothing : rows.length > ROWS_MAX ? `and ${rows.length - ROWS_MAX} more: the JSON has all of them` : null;
  rows = rows.slice(0, ROWS_MAX);
  if (note) {
    const only = cell(note, "quiet");
    only.colSpan = 20;
    rows.push([only]);
  }
  body.replaceChildren(...rows.map((cells) => { const row = element("tr"); row.append(...cells); return row; }));
};

const meter = (used, total) => {
  if (!total) return element("span", "–");
  const made = element("meter", `${(100 * used / total).toFixed(0)} %`);
  Object.assign(made, { min: 0, max: 1, low: 0.9, high: 0.97, optimum: 0, value: used / total });
  made.title = `${(100 * used / total).toFixed(1)} % used`;
  return made;
};
const progress = (done, total) => {
  const made = element("progress");
  made.max = 1;
  if (total) made.value = Math.min(1, done / total);
  return made;
};

// ---- asking ----

class LoggedOut extends Error {}

const ask = async (path) => {
  const answer = await fetch(`/api/v1/${path}`, { signal: AbortSignal.timeout(ANSWER_MAX_MS), cache: "no-store" });
  if (answer.status === 401) throw new LoggedOut();
  if (!answer.ok) throw new Error((await answer.json()).error);
  return { value: await answer.json(), age: Number(answer.headers.get("Age") || 0) };
};

// ---- sections ----

const STATES = { good: "good", notice: "good, with a notice", warning: "to be looked after", error: "something does not work" };

const showHealth = ({ state, findings }) => {
  byId("state").textContent = STATES[state];
  byId("state").className = `badge ${state === "notice" ? "good" : state}`;
  const items = findings.map(({ severity, subject, what, remedy }) => {
    const item = element("li");
    item.append(element("strong", `${severity}: ${subject}`, severity), what, element("span", `→ ${remedy}`));
    return item;
  });
  const before = byId("findings").textContent;
  const after = items.length ? items : [element("li", "Every server answers, and nothing is known to be wrong.")];
  // Written only when it has changed: it is read aloud.
  if (before !== after.map((item) => item.textContent).join("")) byId("findings").replaceChildren(...after);
  document.title = state === "good" || state === "notice" ? "Ashlar console" : `(${findings.length}) Ashlar console`;
};

const showSpace = (space, pools) => {
  fill("pool-rows", space.map((pool) => {
    const known = pools.find((one) => one.name === pool.pool) || {};
    const told = pool.targets_told < pool.targets ? `${pool.targets_told} of ${pool.targets}` : `${pool.targets}`;
    return [head(pool.pool), inCell(meter(pool.bytes_used, pool.bytes_total)), number(bytes(pool.bytes_used)), number(bytes(pool.bytes_free)),
      number(bytes(pool.bytes_total)), number(told), number(known.chains ?? "–"), cell(known.is_rebalancing ? "being rebalanced" : "")];
  }), "no pool");
};

const showServers = (servers) => {
  fill("server-rows", servers.map((server) => {
    const heard = server.heard_ms == null ? "never" : `${age(server.heard_ms / 1000)} ago`;
    const unheard = server.away_s == null ? "" : ` · managers have not heard of it for ${age(server.away_s)}`;
    const store = server.state ? ` · state in ${server.state.store}${server.state.is_reached ? "" : ", not reached"}` : "";
    const state = server.is_away ? cell(`away, heard of ${heard}${unheard}`, "error") : cell(`answers${store}${unheard}`, server.state && !server.state.is_reached ? "error" : unheard ? "warning" : "good");
    if (server.trouble) state.title = server.trouble;
    const rates = server.rates || {};
    const most = (rates.kinds || []).slice(0, 3).map((kind) => `${kind.kind} ${count(kind.calls_per_s)}`).join(", ");
    const left = server.certificate_end ? server.certificate_end - Date.now() / 1000 : null;
    const certificate = left == null ? cell("–") : cell(left > 0 ? `ends in ${age(left)}` : "has ended", left < 21 * 86400 ? "warning" : "");
    return [head(server.node.name), cell(server.role), state, number(count(rates.calls_per_s)), number(count(rates.errors_per_s)),
      number(bytes(rates.read_bytes_per_s)), number(bytes(rates.written_bytes_per_s)), number(took(rates.mean_s)), number(took(rates.slow_s)),
      cell(most), number(rates.cpus == null ? "–" : rates.cpus.toFixed(2)), number(bytes(server.memory_bytes)), cell(since(server.started)),
      cell(server.version || "–"), certificate];
  }), "no server has been started yet");
};

const showTargets = (targets, nodes) => {
  fill("target-rows", targets.map((target) => {
    const node = nodes.find((one) => one.id === target.node.id);
    const addresses = node && node.listening.storage ? node.listening.storage.join(" ") : "–";
    const state = target.state === "online" ? (target.is_draining ? "online, draining" : "online") : target.state;
    const chains = [`${target.chains}`, target.chains_leaving ? `${target.chains_leaving} leave` : "", target.chains_coming ? `${target.chains_coming} come` : ""];
    return [head(target.id), cell(state, target.state === "online" ? "good" : "error"), cell(target.pool), cell(target.node.name), cell(addresses),
      inCell(meter(target.bytes_used, target.bytes_total)), number(bytes(target.bytes_used)), number(bytes(target.bytes_free)),
      number(chains.filter(Boolean).join(", ")), cell(target.path)];
  }), "there is no target yet");
};

const showMoves = (moves, shards) => {
  const rate = moves.rate_mib_s ? `${moves.rate_mib_s} MiB/s per server at the most` : "as fast as servers can";
  byId("move-policy").textContent = `Chains move ${rate}${moves.is_paused ? "; paused" : ""}${moves.rebalancing.length ? `; rebalanced: ${moves.rebalancing.join(", ")}` : ""}.`;
  const ofChains = moves.moves.map((move) => [head(`chain ${move.chain}`), cell(`target ${move.from}`), cell(`target ${move.to}`),
    inCell(progress(move.bytes_done, move.bytes_total), ` ${bytes(move.bytes_done)} of some ${bytes(move.bytes_total)}`), cell(move.obstacle || "is copied", "wide")]);
  const ofShards = shards.filter((shard) => shard.moving).map(({ id, node, moving }) => [head(`shard ${id}`), cell(node.name), cell(moving.to.name),
    inCell(progress(moving.sent, moving.total), ` ${count(moving.sent)} of ${count(moving.total)} keys`), cell(moving.reason || moving.state, "wide")]);
  fill("move-rows", ofChains.concat(ofShards), "nothing is on its way");
};

const showShards = (shards) => {
  const byNode = new Map();
  for (const { id, node } of shards) byNode.set(node.name, (byNode.get(node.name) || []).concat(id));
  fill("shard-rows", [...byNode].map(([name, ids]) => [head(name), number(ids.length), cell(ranges(ids), "wide")]), "no shard");
};

// 1, 2, 3, 7 as 1–3, 7
const ranges = (ids) => {
  const found = [];
  for (const id of ids) {
    const last = found.at(-1);
    if (last && last[1] + 1 === id) last[1] = id; else found.push([id, id]);
  }
  return found.map(([first, last]) => first === last ? `${first}` : `${first}–${last}`).join(", ");
};

const showMounts = (sessions, clients) => {
  const rates = new Map(clients.map((client) => [client.node.name, client]));
  fill("mount-rows", sessions.map((session) => {
    const rate = rates.get(session.node.name) || {};
    const heard = session.is_ending ? cell("is being ended", "error") : cell(`${(session.heard_ms / 1000).toFixed(1)} s ago`, session.heard_ms > 5000 ? "warning" : "");
    return [head(session.node.name ?? `node ${session.node.id}`), cell(session.id_text), cell(session.servers.map((server) => server.name ?? `node ${server.id}`).join(", ")), cell(since(session.since)), heard,
      number(count(session.leases)), number(count(session.opens)), number(count(session.locks)), number(count(rate.calls_per_s)),
      number(bytes(rate.read_bytes_per_s)), number(bytes(rate.written_bytes_per_s))];
  }), "nothing is mounted");
};

let events = [];

const showEvents = (fresh, notes) => {
  // Two who ask at the same time are told the same.
  const newest = events.length ? events.at(-1).number : 0;
  events = events.concat(fresh.filter((event) => event.number > newest)).slice(-EVENTS_MAX);
  const all = events.concat(notes).sort((a, b) => a.time < b.time ? 1 : a.time > b.time ? -1 : b.number - a.number).slice(0, EVENTS_MAX);
  fill("event-rows", all.map((event) => [head(event.time), cell(event.kind), cell(event.subject), cell(event.text, "wide")]), "nothing has happened yet");
};

const showMachines = (nodes) => {
  fill("machine-rows", nodes.map((node) => {
    const listens = Object.entries(node.listening).map(([role, all]) => `${role}: ${all.join(", ")}`).join(" · ");
    const { squash, read_only: isReadOnly, subtree } = node.policy;
    const policy = `root is ${squash === "none" ? "root" : "nobody"}${isReadOnly ? ", read-only" : ""}${subtree ? `, sees ${subtree.path} alone` : ""}`;
    return [number(node.id), head(node.domain ? `${node.name} (in ${node.domain})` : node.name), cell(node.roles.join(", ")), cell(listens || "–", "wide"), cell(node.roles.includes("client") ? policy : "–")];
  }), "no machine");
};

// ---- graphs ----

const GRAPHS = [["calls_per_s", "Calls per second", count], ["read_bytes_per_s", "Read per second", bytes],
  ["written_bytes_per_s", "Written per second", bytes], ["mean_s", "A call takes", took]];

const graph = (figures, title, shown) => {
  const known = figures.filter((figure) => figure != null);
  const most = Math.max(...known, 0);
  const made = element("figure");
  const caption = element("figcaption");
  const last = known.length ? shown(figures.at(-1)) : "–";
  caption.append(element("span", title), element("span", `${last} · most ${shown(most)}`, "quiet"));
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  drawing.setAttribute("viewBox", `0 -2 ${Math.max(1, figures.length - 1)} 104`);
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `${title}: ${last} now, ${shown(most)} at the most`);
  let line = "";
  figures.forEach((figure, at) => {
    if (figure == null) return;
    const begins = at === 0 || figures[at - 1] == null;
    line += `${begins ? "M" : "L"}${at} ${(100 - (most ? 100 * figure / most : 0)).toFixed(1)}`;
  });
  path.setAttribute("d", line);
  drawing.append(path);
  made.append(caption, drawing);
  return made;
};

const showGraphs = async () => {
  const of = byId("of").value;
  const { value } = await ask(`history?span=${byId("span").value}${of ? `&${of}` : ""}`);
  const drawn = GRAPHS.filter(([name]) => value.figures[name]);
  byId("graphs").replaceChildren(...drawn.map(([name, title, shown]) => graph(value.figures[name], title, shown)));
};

const showChoices = (servers, clients) => {
  const choices = [["", "all servers"]];
  for (const { node, role } of servers) choices.push([`node=${node.id}&role=${role}`, `${role} ${node.name}`]);
  for (const { node } of clients) choices.push([`client=${node.name}`, `client ${node.name}`]);
  const select = byId("of");
  const before = [...select.options].map((option) => option.value).join();
  if (before === choices.map(([value]) => value).join()) return;
  const chosen = select.value;
  select.replaceChildren(...choices.map(([value, text]) => { const option = element("option", text); option.value = value; return option; }));
  select.value = choices.some(([value]) => value === chosen) ? chosen : "";
};

// ---- all of it, again and again ----

const refresh = async () => {
  const newest = events.length ? events.at(-1).number : 0;
  const names = ["cluster", "health", "nodes", "pools", "space", "targets", "moves", "shards", "sessions", "servers", "clients", "notes"];
  const answers = await Promise.all(names.map(ask).concat(ask(`events?after=${newest}&max=${EVENTS_MAX}`)));
  const [cluster, health, nodes, pools, space, targets, moves, shards, sessions, servers, clients, notes, fresh] = answers.map(({ value }) => value);
  byId("cluster").textContent = cluster.cluster;
  byId("about").textContent = `Console on ${cluster.console}, version ${cluster.version}; map of epoch ${cluster.epoch}; ${cluster.now}.`;
  const oldest = Math.max(...answers.map((answer) => answer.age));
  byId("stale").textContent = oldest > 6 ? `Some of what is shown is ${age(oldest)} old: it is what servers that are away told last.` : "";
  showHealth(health);
  showSpace(space, pools);
  showServers(servers);
  showTargets(targets, nodes);
  showMoves(moves, shards);
  showShards(shards);
  showMounts(sessions, clients);
  showEvents(fresh, notes);
  showMachines(nodes);
  showChoices(servers, clients);
  await showGraphs();
};

let lastGood = Date.now();

const turn = async () => {
  try {
    if (!document.hidden) {
      await refresh();
      lastGood = Date.now();
      byId("lost").hidden = true;
    }
  } catch (error) {
    if (error instanceof LoggedOut) return location.assign("/login");
    byId("lost").textContent = `The console does not answer; this is how it was ${age((Date.now() - lastGood) / 1000)} ago. (${error.message})`;
    byId("lost").hidden = false;
  }
  setTimeout(turn, EVERY_MS);
};

for (const id of ["of", "span"]) byId(id).addEventListener("change", () => showGraphs().catch(() => {}));
document.addEventListener("visibilitychange", () => { if (!document.hidden && events.length) refresh().catch(() => {}); });
turn();
