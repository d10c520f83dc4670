"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const doc = JSON.parse($("data").textContent);
  const text = doc.text;

  // ---- What was recorded: columns, one entry an exchange.

  const unpacked = (base64) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const binary = atob(base64);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  };
  const data = unpacked(doc.data);
  const count = doc.number.length;
  const start = new Float64Array(count); // ns since the first one
  const rtt = new Float64Array(count).fill(-1); // ns; -1: none
  const up = new Float64Array(count);
  const down = new Float64Array(count);
  const framesAt = new Int32Array(count); // of its first frame in doc.frames
  const dataAt = new Int32Array(count); // of its first byte in data
  const subjectsAt = new Int32Array(count);
  const trip = new Int32Array(count).fill(-1); // which round trip it is a part of
  const FRAME = 5; // numbers of a frame: offset, ns since the exchange began, size, kept, shape

  const asked = (i) => doc.frames[framesAt[i] - 1] & 1;
  const answers = (i) => doc.frames[framesAt[i] - 1] >> 1;
  {
    let time = 0, frame = 0, byte = 0, subject = 0;
    for (let i = 0; i < count; i++) {
      start[i] = time += doc.time[i];
      const code = doc.frames[frame++];
      framesAt[i] = frame;
      dataAt[i] = byte;
      const frames = (code >> 1) + (code & 1);
      for (let n = 0; n < frames; n++) {
        const sent = n === 0 && code & 1;
        (sent ? up : down)[i] += doc.frames[frame + 2];
        byte += doc.frames[frame + 3];
        if (!sent && code & 1) rtt[i] = doc.frames[frame + 1];
        frame += FRAME;
      }
      subjectsAt[i] = subject + 1;
      subject += 1 + 3 * doc.subjects[subject];
    }
  }
  const kindOf = (i) => doc.kinds[doc.kind[i]];
  const nameOf = (i) => text[doc.name[i]] || `(${kindOf(i)})`;
  const scriptOf = (i) => text[doc.script[i]];

  const lanes = []; // a connection each, with its exchanges in order
  const laneOf = new Int32Array(count);
  {
    const byConnection = new Map();
    for (let i = 0; i < count; i++) {
      const connection = doc.connection[i];
      if (!byConnection.has(connection)) {
        byConnection.set(connection, lanes.length);
        lanes.push({ connection, members: [], rows: 1, top: 0, height: 0 });
      }
      laneOf[i] = byConnection.get(connection);
      lanes[laneOf[i]].members.push(i);
    }
  }

  // A command begins a new round trip if a reply came since the command before it: it can have
  // waited for that one. What is pipelined shares one.
  {
    let trips = 0;
    for (const lane of lanes) {
      const waiting = [];
      let head = 0, before = -1, current = -1;
      for (const i of [...lane.members].sort((a, b) => doc.number[a] - doc.number[b])) {
        if (!asked(i) || kindOf(i) === "silent") continue;
        let waited = current < 0;
        while (head < waiting.length && waiting[head] <= start[i]) waited = waiting[head++] > before || waited;
        if (waited) current = trips++;
        trip[i] = current;
        before = start[i];
        if (rtt[i] >= 0) waiting.push(start[i] + rtt[i]);
      }
    }
  }

  // ---- Frames and their trees.

  const shapes = new Map();
  const shapeOf = (number) => {
    let shape = shapes.get(number);
    if (shape) return shape;
    const flat = doc.shapes[number];
    shape = [];
    const open = [];
    for (let n = 0; n < flat.length; n += 3) {
      const [head, content, tail, mark, role, label, error] = doc.parts[flat[n + 2]];
      const at = flat[n + 1];
      const node = {
        index: shape.length, depth: flat[n], at, body: at + head, stop: at + head + content,
        end: at + head + content + tail, mark: text[mark], role: text[role], label: text[label],
        error: text[error], items: 0, parent: -1,
      };
      open.length = node.depth;
      if (node.depth) {
        node.parent = open[node.depth - 1].index;
        open[node.depth - 1].items++;
      }
      open.push(node);
      shape.push(node);
    }
    shapes.set(number, shape);
    return shape;
  };

  const framesOf = (i) => {
    const frames = [];
    let at = framesAt[i], byte = dataAt[i];
    const total = asked(i) + answers(i);
    for (let n = 0; n < total; n++, at += FRAME) {
      const [offset, since, size, kept, shape] = doc.frames.slice(at, at + FRAME);
      frames.push({
        sent: n === 0 && !!asked(i), at: offset, since, size, kept, nodes: shapeOf(shape),
        bytes: data.subarray(byte, byte + kept),
      });
      byte += kept;
    }
    return frames;
  };

  // ---- A peer's bytes as text: what is not plainly visible is escaped, so that nothing of theirs
  // can reorder, hide or colour what is around it.

  const VISIBLE = /^[\p{L}\p{N}\p{P}\p{S}]$/u;
  const SHORT = { 9: "\\t", 10: "\\n", 13: "\\r", 92: "\\\\" };
  const hex2 = (byte) => byte.toString(16).padStart(2, "0");

  const wide = (bytes, at, end) => {
    const first = bytes[at];
    const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || at + length > end) return null;
    let point = first & (0x7f >> length);
    for (let n = 1; n < length; n++) {
      if ((bytes[at + n] & 0xc0) !== 0x80) return null;
      point = (point << 6) | (bytes[at + n] & 0x3f);
    }
    const least = [0, 0, 0x80, 0x800, 0x10000][length];
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return null;
    return { point, length };
  };

  const shown = (bytes, from, to, limit = 200) => {
    let out = "";
    for (let at = from; at < to; ) {
      if (out.length >= limit) return out + "\u2026";
      const byte = bytes[at];
      if (byte < 0x80) {
        out += SHORT[byte] ?? (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "\\x" + hex2(byte));
        at++;
        continue;
      }
      const found = wide(bytes, at, to);
      if (!found) {
        out += "\\x" + hex2(byte);
        at++;
        continue;
      }
      const sign = String.fromCodePoint(found.point);
      out += VISIBLE.test(sign) ? sign : `\\u{${found.point.toString(16)}}`;
      at += found.length;
    }
    return out;
  };
  // The same of text that was made elsewhere: names and labels may come from a peer's script.
  const encoder = new TextEncoder();
  const plain = (string, limit = 200) => {
    const bytes = encoder.encode(string);
    return shown(bytes, 0, bytes.length, limit).replaceAll("\\\\", "\\");
  };

  const TYPES = {
    "+": "simple string", "-": "error", ":": "integer", ",": "double", "#": "boolean", "(": "big number",
    _: "null", $: "bulk string", "!": "bulk error", "=": "verbatim string", "*": "array", "%": "map",
    "~": "set", ">": "push", "|": "attributes", ";": "chunk", ".": "end", inline: "inline command",
    word: "word", "?": "no RESP",
  };
  const QUOTED = new Set(["$", "=", ";", "word", "+"]);

  const valueOf = (frame, node, limit = 200) => {
    const { bytes } = frame;
    const head = shown(bytes, node.at + 1, Math.max(node.at + 1, node.body - 2), 24);
    switch (node.mark) {
      case "*": case "%": case "~": case ">": case "|":
        if (head === "-1") return "null array";
        return head === "?" ? `streamed ${TYPES[node.mark]}` : `${TYPES[node.mark]} of ${head}`;
      case "_": return "null";
      case "#": return bytes[node.body] === 0x74 ? "true" : "false";
      case ".": return "end";
      case "inline": return `line of ${node.items}`;
      case "$": case "=": case "!":
        if (head === "-1") return "null";
        if (head === "?") return `streamed in ${node.items} chunks`;
    }
    const value = shown(bytes, node.body, node.stop, limit);
    if (node.mark === "?") return shown(bytes, node.at, node.end, limit);
    return QUOTED.has(node.mark) ? `"${value}"` : value;
  };

  const CLASSES = {
    framing: "framing", command: "command", digest: "digest", script: "digest", key: "key",
    argument: "argument", payload: "payload", status: "command", error: "malformed", number: "argument",
    null: "framing", malformed: "malformed",
    // The ledger's names
    "command names": "command", digests: "digest", "script bodies": "digest", keys: "key",
    arguments: "argument", payloads: "payload", values: "payload", statuses: "command",
    errors: "malformed", numbers: "argument", "not kept": "framing",
  };
  const classOf = (node) => {
    if (node.mark === "?") return "malformed";
    return CLASSES[node.role] ?? (node.items ? "framing" : "payload");
  };

  // ---- Numbers for readers.

  const bytesTold = (n) => {
    if (n < 10_000) return n.toLocaleString("en");
    if (n < 1_000_000) return (n / 1000).toFixed(n < 100_000 ? 1 : 0) + "k";
    return (n / 1_000_000).toFixed(n < 100_000_000 ? 1 : 0) + "M";
  };
  const timeTold = (ns) => {
    if (ns < 0) return "";
    if (ns < 1e3) return `${ns} ns`;
    if (ns < 1e6) return `${(ns / 1e3).toFixed(ns < 1e5 ? 1 : 0)} \u00b5s`;
    if (ns < 1e9) return `${(ns / 1e6).toFixed(ns < 1e7 ? 2 : ns < 1e8 ? 1 : 0)} ms`;
    return `${(ns / 1e9).toFixed(ns < 1e10 ? 2 : 1)} s`;
  };
  const clock = (ns) => {
    const s = ns / 1e9;
    if (s < 60) return s.toFixed(4);
    const minutes = Math.floor(s / 60);
    return `${minutes}:${(s - minutes * 60).toFixed(2).padStart(5, "0")}`;
  };
  const plural = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

  const element = (tag, className, content) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (content !== undefined) made.textContent = content;
    return made;
  };

  // ---- What an exchange says, in a few words.

  const gists = new Map();
  const gistOf = (i) => {
    let gist = gists.get(i);
    if (gist) return gist;
    const frames = framesOf(i);
    const keys = [], rest = [];
    let answer = "", bad = false;
    for (const frame of frames) {
      if (frame.sent || !asked(i)) {
        for (const node of frame.nodes) {
          if (node.items || node.mark === "." || keys.length + rest.length > 6) continue;
          if (node.role === "key") keys.push(shown(frame.bytes, node.body, node.stop, 80));
          else if (!["command", "digest", "framing", "script"].includes(node.role) && node.label !== "numkeys")
            rest.push(shown(frame.bytes, node.body, node.stop, 60));
        }
      } else if (!answer) {
        const root = frame.nodes.find((node) => node.depth === 0 && node.mark !== "|");
        if (root) {
          answer = valueOf(frame, root, 60);
          bad = "-!?".includes(root.mark);
        }
      }
    }
    if (!asked(i)) answer = "";
    gist = { keys: keys.join(" "), rest: rest.join(" "), answer, bad };
    if (gists.size > 5000) gists.clear();
    gists.set(i, gist);
    return gist;
  };

  // ---- A list of which only what is in sight is in the document.

  class List {
    constructor(box, height, make, fill, paint = () => {}) {
      Object.assign(this, { box, height, make, fill, paint, count: 0, pool: [], asked: false });
      this.space = box.appendChild(element("div", "space"));
      box.addEventListener("scroll", () => this.soon(), { passive: true });
      new ResizeObserver(() => this.soon()).observe(box);
    }
    soon() {
      if (this.asked) return;
      this.asked = true;
      requestAnimationFrame(() => this.draw());
    }
    reset(count) {
      this.count = count;
      this.space.style.height = `${count * this.height}px`;
      for (const row of this.pool) row.at = -1;
      this.draw();
    }
    get visible() {
      return Math.max(1, Math.floor(this.box.clientHeight / this.height));
    }
    draw() {
      this.asked = false;
      const { box, height, count } = this;
      const wanted = Math.ceil(box.clientHeight / height) + 6;
      while (this.pool.length < wanted) {
        const row = this.make();
        row.at = -1;
        row.style.height = `${height}px`;
        this.pool.push(row);
        box.append(row);
        for (const other of this.pool) other.at = -1; // their places follow from how many there are
      }
      const size = this.pool.length;
      const first = Math.max(0, Math.min(Math.floor(box.scrollTop / height) - 3, count - size));
      for (let at = first; at < first + size; at++) {
        const row = this.pool[at % size];
        row.hidden = at >= count;
        if (row.hidden) {
          row.at = -1;
          row.removeAttribute("id");
          row.removeAttribute("aria-selected");
          continue;
        }
        if (row.at !== at) {
          row.at = at;
          row.style.transform = `translateY(${at * height}px)`;
          this.fill(row, at);
        }
        this.paint(row, at);
      }
    }
    repaint() {
      for (const row of this.pool) if (row.at >= 0) this.paint(row, row.at);
    }
    show(at) {
      const top = at * this.height, { box } = this;
      if (top < box.scrollTop) box.scrollTop = top;
      else if (top + this.height > box.scrollTop + box.clientHeight)
        box.scrollTop = top + this.height - box.clientHeight;
      this.draw();
    }
  }

  // ---- State.

  const state = {
    query: "", kind: "", command: "", script: "", subject: "", connection: "",
    sort: "time", falling: false, order: [], place: new Int32Array(count).fill(-1), chosen: -1,
    colour: "command",
  };

  // ---- Search. Words are those of --filter where both have them.

  const haystacks = new Array(count);
  const decoder = new TextDecoder();
  const haystack = (i) => {
    if (haystacks[i] === undefined) {
      const end = i + 1 < count ? dataAt[i + 1] : data.length;
      const names = [nameOf(i), scriptOf(i), text[doc.error[i]], ...subjectsOf(i)].join("\n");
      haystacks[i] = `${names}\n${decoder.decode(data.subarray(dataAt[i], end))}`.toLowerCase();
    }
    return haystacks[i];
  };
  function subjectsOf(i) {
    const found = [];
    const at = subjectsAt[i];
    for (let n = 0; n < doc.subjects[at - 1]; n++) found.push(text[doc.subjects[at + 3 * n]]);
    return found;
  }
  const keysOf = (i) => {
    const keys = [];
    for (const frame of framesOf(i))
      for (const node of frame.nodes)
        if (node.role === "key") keys.push(decoder.decode(frame.bytes.subarray(node.body, node.stop)));
    return keys;
  };
  const globbed = (pattern, whole = true) => {
    const source = pattern.replace(/[.+^${}()|\\\]\[]/g, "\\$&").replaceAll("*", "[^]*").replaceAll("?", "[^]");
    return new RegExp(whole ? `^${source}$` : source, "i");
  };
  const BYTES = { "": 1, b: 1, k: 1024, kb: 1024, m: 1 << 20, mb: 1 << 20 };
  const TIMES = { "": 1e6, ms: 1e6, us: 1e3, "\u00b5s": 1e3, s: 1e9 };
  const MEASURES = {
    size: [BYTES, (i) => up[i] + down[i]], up: [BYTES, (i) => up[i]], down: [BYTES, (i) => down[i]],
    rtt: [TIMES, (i) => rtt[i]],
  };
  const COMPARE = {
    "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b, "=": (a, b) => a === b,
  };
  const named = (pattern) => {
    const name = globbed(pattern.replace(":", " "));
    return (i) => name.test(nameOf(i)) || name.test(nameOf(i).split(" ")[0]);
  };
  const LABELS = {
    command: named,
    cmd: named,
    key: (value) => {
      const pattern = globbed(value);
      return (i) => keysOf(i).some((key) => pattern.test(key));
    },
    script: (value) => {
      const pattern = globbed(value);
      const digest = /^[0-9a-f]{4,40}$/i.test(value) ? value.toLowerCase() : null;
      return (i) => !!doc.script[i] && (pattern.test(scriptOf(i)) || (!!digest && haystack(i).includes(digest)));
    },
    job: (value) => {
      const pattern = globbed(value);
      return (i) => subjectsOf(i).some((subject) => pattern.test(subject));
    },
    conn: (value) => (i) => value.split(",").includes(String(doc.connection[i])),
    dir: (value) => ({ up: asked, down: (i) => answers(i) > 0 })[value] ?? ((i) => kindOf(i) === value),
  };
  LABELS.kind = LABELS.dir;

  const asTest = (term) => {
    const comparison = /^(size|up|down|rtt)(>=|<=|>|<|=)([\d.]+)(\D*)$/i.exec(term);
    if (comparison) {
      const [units, measure] = MEASURES[comparison[1].toLowerCase()];
      const unit = units[comparison[4].toLowerCase()];
      const compare = COMPARE[comparison[2]];
      if (unit) return (i) => measure(i) >= 0 && compare(measure(i), Number(comparison[3]) * unit);
    }
    const labelled = /^([a-z]+)[:=]([^]+)$/i.exec(term);
    if (labelled && Object.hasOwn(LABELS, labelled[1].toLowerCase())) return LABELS[labelled[1].toLowerCase()](labelled[2]);
    const needle = term.toLowerCase();
    if (needle === "error") return (i) => gistOf(i).bad || kindOf(i) === "malformed";
    return (i) => haystack(i).includes(needle);
  };
  const asTests = (query) => {
    const tests = [];
    for (const [, not, quoted, bare] of query.matchAll(/(!?)(?:"((?:\\.|[^"\\])*)"|(\S+))/g)) {
      const test = asTest(quoted !== undefined ? quoted.replace(/\\(["\\])/g, "$1") : bare);
      tests.push(not ? (i) => !test(i) : test);
    }
    return tests;
  };

  // ---- Facets: the ledger's tables, each of what the others leave.

  const costs = doc.costs.map((flat) => {
    const found = [];
    for (let n = 0; n < flat.length; n += 3) found.push([text[flat[n]], flat[n + 1], flat[n + 2]]);
    return found;
  });
  const FACETS = {
    kind: { title: "by kind", parts: (i) => costs[doc.cost[i]] },
    command: { title: "by command", parts: (i) => [[nameOf(i), up[i], down[i]]] },
    script: { title: "by script", parts: (i) => [[scriptOf(i) || "(none)", up[i], down[i]]] },
    subject: {
      title: `by ${doc.subject.replace(/s$/, "")}`,
      parts: (i) => {
        const found = [];
        let restUp = up[i], restDown = down[i];
        const at = subjectsAt[i];
        for (let n = 0; n < doc.subjects[at - 1]; n++) {
          const [name, its, theirs] = doc.subjects.slice(at + 3 * n, at + 3 * n + 3);
          found.push([text[name], its, theirs]);
          restUp -= its;
          restDown -= theirs;
        }
        if (!found.length || restUp || restDown) found.push(["(none)", restUp, restDown]);
        return found;
      },
    },
    connection: { title: "by connection", parts: (i) => [[String(doc.connection[i]), up[i], down[i]]] },
  };
  const facetTests = () =>
    Object.entries(FACETS).filter(([facet]) => state[facet]).map(([facet, { parts }]) => ({
      facet,
      test: (i) => parts(i).some(([name, its, theirs]) => name === state[facet] && (its || theirs)),
    }));
  const open = new Set(); // facets that show all their rows

  const SORTS = {
    number: (i) => doc.number[i], time: (i) => start[i], connection: (i) => doc.connection[i],
    up: (i) => up[i], down: (i) => down[i], rtt: (i) => rtt[i],
    command: (i) => `${nameOf(i)} ${scriptOf(i)}`,
    about: (i) => `${gistOf(i).keys} ${gistOf(i).rest}`,
    answer: (i) => gistOf(i).answer,
  };

  let sums = {};
  const refilter = () => {
    const tests = asTests(state.query);
    const facets = facetTests();
    const order = [];
    sums = {};
    for (const facet of Object.keys(FACETS)) sums[facet] = new Map();
    const total = { exchanges: 0, up: 0, down: 0, trips: new Set() };
    for (let i = 0; i < count; i++) {
      if (!tests.every((test) => test(i))) continue;
      let missed = "", misses = 0;
      for (const { facet, test } of facets)
        if (!test(i)) {
          missed = facet;
          misses++;
        }
      if (!misses) {
        order.push(i);
        total.exchanges++;
        total.up += up[i];
        total.down += down[i];
        if (trip[i] >= 0) total.trips.add(trip[i]);
      }
      if (misses > 1) continue;
      for (const facet of misses ? [missed] : Object.keys(FACETS))
        for (const [name, its, theirs] of FACETS[facet].parts(i)) {
          let sum = sums[facet].get(name);
          if (!sum) sums[facet].set(name, (sum = { exchanges: 0, up: 0, down: 0, trips: new Set() }));
          sum.exchanges++;
          sum.up += its;
          sum.down += theirs;
          if (trip[i] >= 0) sum.trips.add(trip[i]);
        }
    }
    state.total = total;
    state.order = order;
    resort();
    drawLedger();
    drawFilters();
    drawLanes();
  };
  const resort = () => {
    const value = SORTS[state.sort];
    const values = new Map(state.order.map((i) => [i, value(i)]));
    const sign = state.falling ? -1 : 1;
    state.order.sort((a, b) => {
      const x = values.get(a), y = values.get(b);
      return x < y ? -sign : x > y ? sign : a - b;
    });
    state.place.fill(-1);
    state.order.forEach((i, at) => (state.place[i] = at));
    rows.reset(state.order.length);
    $("grid").setAttribute("aria-rowcount", state.order.length + 1);
    $("none").hidden = state.order.length > 0 || !count;
    for (const cell of $("grid-head").children)
      cell.setAttribute("aria-sort", cell.dataset.sort !== state.sort ? "none" : state.falling ? "descending" : "ascending");
  };

  // ---- The table.

  const COLUMNS = [
    ["number", "#", "right"], ["time", "time, s", "right"], ["connection", "co", "right"],
    ["command", "command", ""], ["about", "keys, arguments", ""], ["answer", "reply", "answer-head"],
    ["up", "up", "right"], ["down", "down", "right"], ["rtt", "trip", "right"],
  ];
  for (const [name, title, className] of COLUMNS) {
    const cell = element("div", className);
    cell.setAttribute("role", "columnheader");
    cell.dataset.sort = name;
    const button = cell.appendChild(element("button", "", title));
    button.type = "button";
    button.addEventListener("click", () => {
      state.falling = state.sort === name ? !state.falling : ["up", "down", "rtt"].includes(name);
      state.sort = name;
      resort();
      if (state.place[state.chosen] >= 0) rows.show(state.place[state.chosen]);
    });
    $("grid-head").append(cell);
  }
  const rows = new List(
    $("rows"), 23,
    () => {
      const row = element("div", "row");
      row.setAttribute("role", "row");
      row.cells = ["num right", "num right", "num right", "what", "of", "answer", "num right", "num right", "num right"].map(
        (className) => {
          const cell = row.appendChild(element("div", className));
          cell.setAttribute("role", "gridcell");
          return cell;
        },
      );
      const [, , , what, about] = row.cells;
      row.name = what.appendChild(element("b"));
      row.script = what.appendChild(element("span", "script"));
      row.keys = about.appendChild(element("span", "k"));
      row.rest = about.appendChild(element("span"));
      return row;
    },
    (row, at) => {
      const i = state.order[at];
      const gist = gistOf(i);
      row.id = `x${i}`;
      row.setAttribute("aria-rowindex", at + 2);
      row.className = `row ${kindOf(i)}`;
      const { cells } = row;
      cells[0].textContent = doc.number[i];
      cells[1].textContent = clock(start[i]);
      cells[2].textContent = doc.connection[i];
      row.name.textContent = plain(nameOf(i), 40);
      row.script.textContent = doc.script[i] ? ` ${plain(scriptOf(i), 40)}` : "";
      row.keys.textContent = gist.keys;
      row.rest.textContent = gist.rest ? ` ${gist.rest}` : "";
      cells[5].textContent = gist.answer || (asked(i) ? kindOf(i) : "");
      cells[5].classList.toggle("err", gist.bad || ["lost", "malformed"].includes(kindOf(i)));
      cells[6].textContent = up[i] ? bytesTold(up[i]) : "";
      cells[7].textContent = down[i] ? bytesTold(down[i]) : "";
      cells[8].textContent = rtt[i] >= 0 ? timeTold(rtt[i]) : kindOf(i) === "reply" ? "" : kindOf(i);
    },
    (row, at) => row.setAttribute("aria-selected", state.order[at] === state.chosen),
  );
  $("rows").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) choose(state.order[row.at]);
  });

  // ---- The selected exchange.

  let frames = []; // of the selected one
  let branches = []; // rows of the tree: {frame, node}; node null: the heading of a frame
  let lines = []; // rows of the hex: {frame, from}; from -1: the heading
  let across = 16; // bytes of a row
  let over = null; // {frame, node, byte} under the mouse
  let pinned = null; // the same, where a click or the keyboard left it
  const marked = () => over ?? pinned;

  const fillWay = (row, frame) => {
    row.className = "way";
    row.removeAttribute("aria-level");
    const parts = [
      element("b", "", frame.sent ? "\u2191 sent " : "\u2193 received "),
      `${plural(frame.size, "byte")} at ${frame.at.toLocaleString("en")}`,
    ];
    if (!frame.sent) parts.push(`, after ${timeTold(frame.since)}`);
    if (frame.kept < frame.size) parts.push(`; the first ${frame.kept.toLocaleString("en")} are kept`);
    row.replaceChildren(...parts);
    row.of = null;
  };
  const tree = new List(
    $("tree"), 21,
    () => element("div"),
    (row, at) => {
      const { frame, node } = branches[at];
      row.id = `n${at}`;
      row.setAttribute("role", node ? "treeitem" : "presentation");
      if (!node) return fillWay(row, frame);
      if (!row.of) {
        row.of = Object.fromEntries(["at", "size", "value", "label"].map((name) => [name, element("span", name)]));
        row.replaceChildren(row.of.at, row.of.size, row.of.value, row.of.label);
      }
      row.setAttribute("aria-level", node.depth + 1);
      row.of.at.textContent = frame.at + node.at;
      row.of.size.textContent = node.end - node.at;
      const sign = element("span", "sign", node.mark.length > 1 ? "\u00b7" : node.mark);
      sign.title = TYPES[node.mark] ?? "";
      row.of.value.replaceChildren(sign, valueOf(frame, node));
      row.of.value.className = `value k-${classOf(node)}`;
      row.of.value.style.paddingLeft = `${node.depth * 2}ch`;
      const size = node.stop - node.body;
      const long = size > 200 && !node.items ? `${size.toLocaleString("en")} bytes` : "";
      row.of.label.replaceChildren([plain(node.label), long].filter(Boolean).join(", "));
      if (node.error && !(frame.kept < frame.size)) row.of.label.append(element("span", "bad", ` ${plain(node.error)}`));
      return undefined;
    },
    (row, at) => {
      const { frame, node } = branches[at];
      if (!node) return;
      const is = (mark) => !!mark && mark.frame === frame && mark.node === node;
      row.className = `node${is(marked()) ? " on" : ""}${is(pinned) ? " pin" : ""}`;
      row.setAttribute("aria-selected", is(pinned));
    },
  );

  const hex = new List(
    $("hex"), 19,
    () => element("div"),
    (row, at) => {
      const { frame, from } = lines[at];
      if (from < 0) return fillWay(row, frame);
      if (row.of?.length !== across) {
        row.className = "bytes";
        row.offset = element("span", "at");
        row.of = Array.from({ length: across }, (_, n) => ({
          hex: element("span", n && n % 8 === 0 ? "h gap" : "h"),
          sign: element("span", n ? "a" : "a first"),
          n,
        }));
        row.replaceChildren(row.offset, ...row.of.map((cell) => cell.hex), ...row.of.map((cell) => cell.sign));
        for (const cell of row.of) cell.hex.n = cell.sign.n = cell.n;
      }
      row.offset.textContent = (frame.at + from).toString(16).padStart(6, "0");
      for (const { hex: pair, sign, n } of row.of) {
        const there = from + n < frame.kept;
        const byte = frame.bytes[from + n];
        pair.textContent = there ? hex2(byte) : "\u00a0";
        sign.textContent = there ? (byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : byte === 0x20 ? "\u00a0" : "\u00b7") : "\u00a0";
      }
      return undefined;
    },
    (row, at) => {
      const { frame, from } = lines[at];
      if (from < 0) return;
      const mark = marked();
      const on = mark && mark.frame === frame ? mark : null;
      for (const { hex: pair, sign, n } of row.of) {
        const byte = from + n;
        const kind = byte < frame.kept ? frame.classes[frame.kindAt[byte]] : "";
        const lit = on && byte >= on.node.at && byte < on.node.end && byte < frame.kept ? " on" : "";
        const current = on && on.byte === byte ? " cur" : "";
        pair.className = `h${n && n % 8 === 0 ? " gap" : ""} k-${kind}${lit}${current}`;
        sign.className = `a${n ? "" : " first"} k-${kind}${lit}${current}`;
      }
    },
  );

  const CLASS_NAMES = ["framing", "command", "digest", "key", "argument", "payload", "malformed"];
  const mapBytes = (frame) => {
    // A child comes after its parent, and so has the last word on its bytes.
    frame.owner = new Int32Array(frame.kept).fill(-1);
    frame.kindAt = new Uint8Array(frame.kept);
    frame.classes = CLASS_NAMES;
    for (const node of frame.nodes) {
      const kind = CLASS_NAMES.indexOf(classOf(node));
      frame.owner.fill(node.index, node.at, node.end);
      frame.kindAt.fill(0, node.at, node.end);
      if (!node.items) frame.kindAt.fill(kind, node.mark === "?" ? node.at : node.body, node.mark === "?" ? node.end : node.stop);
    }
  };

  const fit = () => {
    const probe = $("hex").appendChild(element("span", "", "0".repeat(100)));
    probe.style.position = "absolute";
    const ch = probe.getBoundingClientRect().width / 100;
    probe.remove();
    const room = ($("hex").clientWidth - 26) / ch - 8;
    across = [16, 8, 4].find((n) => n * 3.7 + 1.5 + Math.ceil(n / 8) - 1 <= room) ?? 4;
  };
  const layLines = () => {
    lines = [];
    for (const frame of frames) {
      lines.push({ frame, from: -1 });
      frame.line = lines.length;
      for (let from = 0; from < frame.kept; from += across) lines.push({ frame, from });
    }
    hex.reset(lines.length);
  };
  const layOut = () => {
    branches = [];
    for (const frame of frames) {
      mapBytes(frame);
      branches.push({ frame, node: null });
      frame.branch = branches.length;
      for (const node of frame.nodes) branches.push({ frame, node });
    }
    $("tree").scrollTop = $("hex").scrollTop = 0;
    tree.reset(branches.length);
    fit();
    layLines();
  };
  new ResizeObserver(() => {
    const before = across;
    fit();
    if (before !== across) layLines();
  }).observe($("hex"));

  const light = (mark) => {
    over = mark;
    tree.repaint();
    hex.repaint();
  };
  const showInHex = ({ frame, node }) => hex.show(frame.line + Math.floor(Math.min(node.at, Math.max(0, frame.kept - 1)) / across));
  const showInTree = ({ frame, node }) => tree.show(frame.branch + node.index);

  const branchUnder = (event) => {
    const at = event.target.closest(".node")?.at;
    const branch = at >= 0 ? branches[at] : null;
    return branch?.node ? { ...branch, byte: -1 } : null;
  };
  const byteUnder = (event) => {
    const { n } = event.target;
    const line = n === undefined ? null : lines[event.target.closest(".bytes").at];
    const byte = line ? line.from + n : -1;
    if (!line || byte >= line.frame.kept || line.frame.owner[byte] < 0) return null;
    return { frame: line.frame, node: line.frame.nodes[line.frame.owner[byte]], byte };
  };
  const pin = (mark) => {
    pinned = mark;
    light(over);
    $("tree").setAttribute("aria-activedescendant", mark ? `n${mark.frame.branch + mark.node.index}` : "");
  };
  for (const [box, under, show] of [["tree", branchUnder, showInHex], ["hex", byteUnder, showInTree]]) {
    $(box).addEventListener("pointermove", (event) => {
      const mark = under(event);
      if (mark?.node === over?.node && mark?.byte === over?.byte && mark?.frame === over?.frame) return;
      light(mark);
      if (mark) show(mark);
    });
    $(box).addEventListener("pointerleave", () => light(null));
    $(box).addEventListener("click", (event) => {
      const mark = under(event);
      if (!mark) return;
      const same = pinned && pinned.frame === mark.frame && pinned.node === mark.node;
      pin(same ? null : mark);
      show(mark);
    });
  }
  $("tree").addEventListener("keydown", (event) => {
    const at = pinned ? pinned.frame.branch + pinned.node.index : -1;
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: tree.visible, PageUp: -tree.visible, Home: -Infinity, End: Infinity }[event.key];
    let next = -1;
    if (step) {
      next = Math.max(0, Math.min(branches.length - 1, at + step));
      while (branches[next] && !branches[next].node) next += step < 0 && next > 0 ? -1 : 1;
    } else if (event.key === "ArrowLeft" && pinned && pinned.node.parent >= 0) {
      next = pinned.frame.branch + pinned.node.parent;
    } else if (event.key === "ArrowRight" && pinned?.node.items) {
      next = at + 1;
    } else return;
    event.preventDefault();
    event.stopPropagation();
    if (!branches[next]) return;
    pin({ ...branches[next], byte: -1 });
    tree.show(next);
    showInHex(branches[next]);
  });

  const answered = (i) => doc.queued[i] ?? [];
  const indexOf = new Map();
  for (let i = 0; i < count; i++) indexOf.set(`${doc.connection[i]}.${doc.number[i]}`, i);
  const linkTo = (i) => {
    const link = element("a", "", `#${doc.number[i]}`);
    link.href = `#${doc.connection[i]}.${doc.number[i]}`;
    return link;
  };
  const queuedBy = (i) =>
    answered(i).map((at) => lanes[laneOf[i]].members.find((other) => asked(other) && doc.frames[framesAt[other]] === at)).filter((other) => other !== undefined);

  const fact = (name, ...values) => {
    const div = element("div");
    div.append(element("dt", "", name));
    const dd = div.appendChild(element("dd"));
    dd.append(...values);
    $("facts").append(div);
  };
  const TOLD = {
    reply: "", push: "a push: nobody asked for it", silent: "silent: no reply is owed", lost: "lost: no reply came",
    malformed: "malformed",
  };
  const choose = (i, { hash = true } = {}) => {
    state.chosen = i;
    rows.repaint();
    const place = state.place[i];
    if (place >= 0) rows.show(place);
    $("grid").setAttribute("aria-activedescendant", `x${i}`);
    drawDetail(i);
    drawLanes();
    if (hash && i >= 0) {
      const target = `#${doc.connection[i]}.${doc.number[i]}`;
      if (location.hash !== target) history.replaceState(null, "", target);
    }
  };
  const drawDetail = (i) => {
    over = pinned = null;
    frames = i >= 0 ? framesOf(i) : [];
    $("detail-title").textContent = i >= 0 ? plain(nameOf(i), 60) : "";
    $("facts").replaceChildren();
    $("legend").replaceChildren();
    for (const id of ["copy-hex", "copy-resp"]) $(id).disabled = i < 0;
    if (i < 0) {
      $("detail-script").hidden = $("detail-state").hidden = $("fault").hidden = true;
      return layOut();
    }
    $("detail-script").hidden = !doc.script[i];
    $("detail-script").textContent = plain(scriptOf(i), 60);
    $("detail-state").hidden = kindOf(i) === "reply";
    $("detail-state").textContent = kindOf(i);
    $("detail-state").classList.toggle("bad", ["lost", "malformed"].includes(kindOf(i)));
    const error = text[doc.error[i]];
    const fault = [TOLD[kindOf(i)], error && plain(error, 400)].filter(Boolean).join(": ");
    $("fault").hidden = !["lost", "malformed"].includes(kindOf(i)) && !error;
    $("fault").textContent = fault;

    fact("exchange", `${doc.number[i]} of connection ${doc.connection[i]}`);
    fact("at", `${clock(start[i])} s`);
    fact("up", `${up[i].toLocaleString("en")} B`);
    fact("down", `${down[i].toLocaleString("en")} B`);
    if (rtt[i] >= 0) fact("round trip", timeTold(rtt[i]));
    if (answers(i) > 1) fact("replies", String(answers(i)));
    if (kindOf(i) === "push" || kindOf(i) === "silent") fact("", TOLD[kindOf(i)]);
    const queued = queuedBy(i);
    if (queued.length) {
      const links = queued.slice(0, 12).flatMap((other) => [linkTo(other), " "]);
      fact("answers", ...links, queued.length > 12 ? `and ${queued.length - 12} more` : "");
    }
    const subjects = subjectsOf(i);
    if (subjects.length)
      fact(subjects.length === 1 ? doc.subject.replace(/s$/, "") : doc.subject,
        plain(subjects.slice(0, 3).join(" "), 120) + (subjects.length > 3 ? ` and ${subjects.length - 3} more` : ""));
    for (const [name, its, theirs] of costs[doc.cost[i]]) {
      const item = element("li", `k-${CLASSES[name] ?? "payload"}`);
      item.append(element("i"), name, element("b", "", its && theirs ? `${its}+${theirs}` : String(its || theirs)));
      item.title = `${name}: ${its} bytes up, ${theirs} down`;
      $("legend").append(item);
    }
    return layOut();
  };

  // ---- Copying.

  const say = (told) => {
    $("told").textContent = told;
  };
  const copy = async (button, content) => {
    const before = button.dataset.label ?? (button.dataset.label = button.textContent);
    let done = true;
    try {
      await navigator.clipboard.writeText(content);
    } catch {
      const area = document.body.appendChild(element("textarea", "out"));
      area.value = content;
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    button.textContent = done ? "Copied" : "Refused";
    say(done ? "Copied" : "The browser refused to copy");
    setTimeout(() => (button.textContent = before), 1200);
  };
  const hexText = () =>
    frames.map((frame) => {
      const out = [];
      for (let from = 0; from < frame.kept; from += 16)
        out.push(Array.from(frame.bytes.subarray(from, from + 16), hex2).join(" "));
      return out.join("\n");
    }).join("\n\n");
  const respText = () =>
    frames.map((frame) => shown(frame.bytes, 0, frame.kept, Infinity).replaceAll("\\r\\n", "\\r\\n\n").trimEnd()).join("\n\n");
  $("copy-hex").addEventListener("click", (event) => copy(event.currentTarget, hexText()));
  $("copy-resp").addEventListener("click", (event) => copy(event.currentTarget, respText()));

  // ---- The ledger.

  const drawLedger = () => {
    const body = $("ledger-body");
    const { scrollTop } = body;
    const focused = document.activeElement?.dataset?.facet ? { ...document.activeElement.dataset } : null;
    body.replaceChildren();
    for (const [facet, { title }] of Object.entries(FACETS)) {
      let found = [...sums[facet]].filter(([, sum]) => sum.up || sum.down);
      if (facet === "connection" && lanes.length < 2) continue;
      if ((facet === "script" || facet === "subject") && !found.some(([name]) => name !== "(none)")) continue;
      found.sort((a, b) => b[1].up + b[1].down - a[1].up - a[1].down);
      const most = Math.max(...found.map(([, sum]) => Math.max(sum.up, sum.down)));
      const box = body.appendChild(element("div", `facet ${facet}`));
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", title);
      const head = box.appendChild(element("h3", "", title));
      head.append(element("span", "", facet === "kind" ? "bytes" : String(found.length)));
      const shownRows = open.has(facet) ? 200 : facet === "kind" ? 20 : 6;
      const rest = found.length - shownRows;
      const chosen = found.findIndex(([name]) => name === state[facet]);
      if (rest > 0) {
        const kept = found[chosen];
        found = found.slice(0, shownRows);
        if (chosen >= shownRows) found.push(kept);
      }
      for (const [name, sum] of found) {
        const button = box.appendChild(element("button"));
        button.type = "button";
        button.dataset.facet = facet;
        button.dataset.name = name;
        button.setAttribute("aria-pressed", state[facet] === name);
        const told = `${plain(name)}: ${plural(sum.up, "byte")} up, ${sum.down.toLocaleString("en")} down, ${plural(sum.exchanges, "exchange")}, ${plural(sum.trips.size, "round trip")}`;
        button.title = told;
        button.setAttribute("aria-label", told);
        button.append(element("span", "name", plain(name, 60)), element("span", "amount", bytesTold(sum.up + sum.down)));
        const bars = button.appendChild(element("span", "bars"));
        for (const amount of [sum.up, sum.down])
          bars.appendChild(element("i", amount ? "some" : "")).style.width = `${(100 * amount) / most}%`;
        if (facet === "kind") bars.classList.add(`k-${CLASSES[name] ?? "payload"}`);
        else if (facet === state.colour) bars.style.setProperty("--of", `var(--c${colourOf(name) + 1})`);
        button.addEventListener("click", () => filterBy(facet, state[facet] === name ? "" : name));
      }
      if (rest > 0 || open.has(facet)) {
        const more = box.appendChild(element("button", "more", open.has(facet) ? "fewer" : `${rest} more`));
        more.type = "button";
        more.addEventListener("click", () => {
          if (!open.delete(facet)) open.add(facet);
          drawLedger();
        });
      }
    }
    body.scrollTop = scrollTop;
    if (focused)
      [...body.querySelectorAll("button")].find((button) => button.dataset.facet === focused.facet && button.dataset.name === focused.name)?.focus();
  };
  const filterBy = (facet, name) => {
    state[facet] = name;
    refilter();
    if (state.place[state.chosen] >= 0) rows.show(state.place[state.chosen]);
  };
  const drawFilters = () => {
    const { total } = state;
    $("found").textContent = state.order.length === count
      ? plural(count, "exchange")
      : `${state.order.length.toLocaleString("en")} of ${plural(count, "exchange")}, ${bytesTold(total.up)} up, ${bytesTold(total.down)} down`;
    if (doc.left_out) $("found").append(`; ${doc.left_out.toLocaleString("en")} older ones left out`);
    $("filters").replaceChildren();
    for (const facet of Object.keys(FACETS)) {
      if (!state[facet]) continue;
      const button = element("button", "", `${plain(state[facet], 30)} \u00d7`);
      button.type = "button";
      button.setAttribute("aria-label", `Remove the filter ${facet} ${plain(state[facet])}`);
      button.addEventListener("click", () => filterBy(facet, ""));
      $("filters").appendChild(element("li")).append(button);
    }
  };

  // ---- The time line.

  const box = $("lanes"), canvas = $("canvas"), pen = canvas.getContext("2d");
  const GUTTER = 46, AXIS = 18, BAR = 7, STEP = 9;
  let whole = 1; // ns
  const bar = new Uint8Array(count); // the row of its lane, where exchanges overlap
  {
    let top = AXIS;
    for (let i = 0; i < count; i++) whole = Math.max(whole, start[i] + Math.max(0, rtt[i]));
    for (const lane of lanes) {
      const ends = [];
      for (const i of lane.members) {
        let row = ends.findIndex((end) => end <= start[i]);
        if (row < 0) row = ends.length < 4 ? ends.length : 3;
        ends[row] = Math.max(ends[row] ?? 0, start[i] + Math.max(0, rtt[i]));
        bar[i] = row;
      }
      lane.rows = Math.max(1, ends.length);
      lane.top = top;
      lane.height = lane.rows * STEP + 8;
      top += lane.height;
    }
    $("lanes-height").style.height = "0px";
    lanes.bottom = top;
  }
  const view = { from: 0, to: whole };
  const colours = { command: new Map(), script: new Map() };
  {
    for (const [way, name] of [["command", nameOf], ["script", (i) => scriptOf(i) || "(none)"]]) {
      const counts = new Map();
      for (let i = 0; i < count; i++) counts.set(name(i), (counts.get(name(i)) ?? 0) + 1);
      const ranked = [...counts].filter(([key]) => key !== "(none)").sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
      ranked.forEach(([key], at) => colours[way].set(key, Math.min(at, 8)));
    }
  }
  const colourOf = (name) => colours[state.colour].get(name) ?? 8;
  const categoryOf = (i) => colourOf(state.colour === "command" ? nameOf(i) : scriptOf(i) || "(none)");
  let ink = null;
  const inks = () => {
    if (ink) return ink;
    // A canvas has no part in the cascade: it is asked what the variables come to.
    const probe = document.body.appendChild(element("i", "out"));
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    ink = { bars: Array.from({ length: 9 }, (_, n) => read(`c${n + 1}`)) };
    for (const name of ["ink", "soft", "rule", "fault", "focus", "pane", "key", "chosen"]) ink[name] = read(name);
    probe.remove();
    return ink;
  };
  let drawing = false;
  const drawLanes = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      paintLanes();
    });
  };
  const xOf = (ns) => GUTTER + ((ns - view.from) / (view.to - view.from)) * (box.clientWidth - GUTTER - 10);
  const nsAt = (x) => view.from + ((x - GUTTER) / (box.clientWidth - GUTTER - 10)) * (view.to - view.from);

  const paintLanes = () => {
    const width = box.clientWidth, height = box.clientHeight, ratio = devicePixelRatio || 1;
    if (!width) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
      $("lanes-height").style.height = `${Math.max(0, lanes.bottom - height)}px`;
    }
    const { bars, soft, rule, fault, focus, pane, key, ink: black } = inks();
    const scrolled = box.scrollTop;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px ui-sans-serif, system-ui, sans-serif";
    pen.textBaseline = "middle";

    const span = view.to - view.from;
    const rough = span / Math.max(2, (width - GUTTER) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const ticks = [];
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) ticks.push(t);
    pen.fillStyle = rule;
    for (const t of ticks) pen.fillRect(Math.round(xOf(t)), AXIS - 4, 1, height);

    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height);
    pen.clip();
    const matches = state.order.length === count ? null : state.place;
    for (const lane of lanes) {
      const top = lane.top - scrolled;
      if (top > height || top + lane.height < AXIS) continue;
      pen.fillStyle = rule;
      pen.fillRect(0, top + lane.height - 1, width, 1);
      for (const pass of matches ? [0, 1] : [1]) {
        const last = new Float64Array(4).fill(-1); // where the row's last bar ends
        const lastColour = [-1, -1, -1, -1];
        for (const i of lane.members) {
          if (matches && (matches[i] >= 0) !== !!pass) continue;
          const length = Math.max(0, rtt[i]);
          const x = xOf(start[i]), end = xOf(start[i] + length);
          if (end < GUTTER - 4) continue;
          if (x > width + 4) break;
          const y = top + 4 + bar[i] * STEP;
          const colour = categoryOf(i);
          const right = Math.max(end, x + 2);
          if (right <= last[bar[i]] && lastColour[bar[i]] === colour && i !== state.chosen) continue;
          last[bar[i]] = right;
          lastColour[bar[i]] = colour;
          pen.globalAlpha = pass ? 1 : 0.16;
          const kind = kindOf(i);
          if (kind === "push") {
            pen.fillStyle = key;
            pen.beginPath();
            pen.moveTo(x - 3.5, y);
            pen.lineTo(x + 3.5, y);
            pen.lineTo(x, y + BAR);
            pen.fill();
            pen.fillRect(x - 0.5, y, 1, lane.height - 6 - bar[i] * STEP);
          } else if (kind === "malformed") {
            pen.fillStyle = fault;
            pen.fillRect(x - 1, top + 2, 3, lane.height - 5);
          } else if (kind === "lost" || kind === "silent") {
            pen.strokeStyle = kind === "lost" ? fault : bars[colour];
            pen.lineWidth = 1.5;
            pen.strokeRect(x + 0.75, y + 0.75, Math.max(4, right - x), BAR - 1.5);
          } else {
            pen.fillStyle = bars[colour];
            const wide = right - x;
            if (wide > 5) {
              pen.beginPath();
              pen.roundRect(x, y, wide, BAR, 2);
              pen.fill();
            } else pen.fillRect(x, y, wide, BAR);
          }
        }
      }
      pen.globalAlpha = 1;
    }
    if (state.chosen >= 0) {
      const i = state.chosen;
      const x = xOf(start[i]), right = Math.max(xOf(start[i] + Math.max(0, rtt[i])), x + 2);
      const y = lanes[laneOf[i]].top - scrolled + 4 + bar[i] * STEP;
      pen.strokeStyle = black;
      pen.lineWidth = 1.5;
      pen.strokeRect(x - 2, y - 2, right - x + 4, BAR + 4);
      pen.fillStyle = focus;
      pen.fillRect(Math.round((x + right) / 2), AXIS, 1, Math.max(0, y - 2 - AXIS));
    }
    pen.fillStyle = pane;
    pen.fillRect(0, AXIS, GUTTER - 4, height);
    pen.fillStyle = soft;
    pen.textAlign = "right";
    for (const lane of lanes) {
      const y = lane.top - scrolled + (lane.height - 1) / 2;
      if (y > AXIS - 6 && y < height + 6) pen.fillText(String(lane.connection), GUTTER - 12, y);
    }
    pen.restore();
    pen.fillStyle = soft;
    pen.textAlign = "left";
    pen.fillText("conn", 12, AXIS / 2 + 1);
    for (const t of ticks) {
      const x = xOf(t);
      if (x > GUTTER - 2 && x < width - 40) pen.fillText(t ? timeTold(Math.round(t)) : "0", x + 4, AXIS / 2 + 1);
    }
    $("extent").textContent = `${timeTold(Math.round(span))}${span < whole * 0.999 ? ` of ${timeTold(whole)}` : ""}`;
  };

  const zoom = (factor, x = (box.clientWidth + GUTTER) / 2) => {
    const at = nsAt(Math.max(GUTTER, x));
    const span = Math.max(1000, Math.min(whole, (view.to - view.from) * factor));
    const share = (at - view.from) / (view.to - view.from);
    move(at - share * span, span);
  };
  const move = (from, span) => {
    view.from = Math.max(0, Math.min(whole - span, from));
    view.to = view.from + span;
    drawLanes();
  };
  const fitAll = () => move(0, whole);
  const zoomToChosen = (factor) => zoom(factor, state.chosen >= 0 ? Math.min(box.clientWidth, Math.max(GUTTER, xOf(start[state.chosen]))) : undefined);
  box.addEventListener("wheel", (event) => {
    if (event.altKey) return; // leaves the lanes to scroll
    event.preventDefault();
    const unit = event.deltaMode ? 30 : 1;
    const x = event.clientX - box.getBoundingClientRect().left;
    const span = view.to - view.from;
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(view.from + (sideways * unit * span) / box.clientWidth, span);
    else zoom(Math.exp(Math.max(-80, Math.min(80, event.deltaY * unit)) * 0.004), x);
  }, { passive: false });
  box.addEventListener("scroll", drawLanes, { passive: true });
  box.addEventListener("dblclick", fitAll);
  new ResizeObserver(drawLanes).observe(box);

  const under = (event) => {
    const bounds = box.getBoundingClientRect();
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top + box.scrollTop;
    const lane = lanes.find((one) => y >= one.top && y < one.top + one.height);
    if (!lane) return -1;
    let best = -1, near = 7;
    for (const i of lane.members) {
      const left = xOf(start[i]);
      if (left > x + 7) break;
      const right = Math.max(left + 2, xOf(start[i] + Math.max(0, rtt[i])));
      const away = Math.max(left - x, x - right, 0) + Math.abs(y - (lane.top + 7.5 + bar[i] * STEP)) / 4;
      if (away <= near) {
        near = away;
        best = i;
      }
    }
    return best;
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, from: view.from, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = event.clientX - drag.x;
      if (Math.abs(by) > 3) drag.moved = true;
      const span = view.to - view.from;
      if (drag.moved) move(drag.from - (by * span) / (box.clientWidth - GUTTER - 10), span);
      return;
    }
    const i = under(event);
    const tip = $("tip");
    tip.hidden = i < 0;
    if (i < 0) return;
    const gist = gistOf(i);
    tip.textContent = [
      `#${doc.number[i]} ${plain(nameOf(i), 40)} ${plain(scriptOf(i), 40)}`.trim(),
      [gist.keys, gist.rest].filter(Boolean).join(" ").slice(0, 70),
      `${clock(start[i])} s, ${up[i]} B up, ${down[i]} B down${rtt[i] >= 0 ? `, ${timeTold(rtt[i])}` : `, ${kindOf(i)}`}`,
    ].filter(Boolean).join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  });
  canvas.addEventListener("pointerup", (event) => {
    const clicked = drag && !drag.moved;
    drag = null;
    const i = clicked ? under(event) : -1;
    if (i >= 0) choose(i);
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => ($("tip").hidden = true));
  $("zoom-in").addEventListener("click", () => zoomToChosen(0.5));
  $("zoom-out").addEventListener("click", () => zoomToChosen(2));
  $("zoom-fit").addEventListener("click", fitAll);

  const colourBy = (way) => {
    state.colour = way;
    $("by-command").setAttribute("aria-pressed", way === "command");
    $("by-script").setAttribute("aria-pressed", way === "script");
    $("colours").replaceChildren();
    const names = [...colours[way]].slice(0, 8).map(([name]) => name);
    if (colours[way].size > 8) names.push(null);
    for (const name of names) {
      const item = $("colours").appendChild(element("li"));
      const button = item.appendChild(element("button"));
      button.type = "button";
      const swatch = button.appendChild(element("i"));
      swatch.style.background = `var(--c${(name === null ? 8 : colours[way].get(name)) + 1})`;
      button.append(name === null ? `${colours[way].size - 8} more` : plain(name, 28));
      if (name === null) button.disabled = true;
      else button.addEventListener("click", () => filterBy(way, state[way] === name ? "" : name));
    }
    drawLedger();
    drawLanes();
  };
  $("by-command").addEventListener("click", () => colourBy("command"));
  $("by-script").addEventListener("click", () => colourBy("script"));

  // ---- Tools and keys.

  const root = document.documentElement;
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : darkness.matches);
  const retheme = () => {
    ink = null;
    $("theme-button").textContent = isDark() ? "Light" : "Dark";
    drawLanes();
  };
  const toggleTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("resp-tap-theme", root.dataset.theme);
    } catch {
      // A browser may keep nothing for files; then the theme lasts as long as the page.
    }
    retheme();
  };
  try {
    const kept = localStorage.getItem("resp-tap-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch {
    // as above
  }
  darkness.addEventListener("change", retheme);
  $("theme-button").addEventListener("click", toggleTheme);
  const toggleLedger = (on = $("bench").classList.contains("no-ledger")) => {
    $("bench").classList.toggle("no-ledger", !on);
    $("ledger-button").setAttribute("aria-pressed", on);
  };
  $("ledger-button").addEventListener("click", () => toggleLedger());
  $("help-button").addEventListener("click", () => $("help").showModal());

  for (const [word, told] of [
    ["any text", "in names, keys and bytes"], ["command:get", "by name; * stands for any"],
    ["key:user:*", "a key that it names"], ["script:claim", "its script's name or digest"],
    ["job:ID", `one of the ${doc.subject}`],
    ["rtt>5", "slower, in ms; or >500us, >1s"], ["size>1k", "both ways; up> and down>, too"],
    ["conn:1,3", "connections"], ["dir:push", "reply push silent lost malformed"],
    ["error", "an error, or no RESP"], ["!term", "not so"],
  ]) {
    const line = $("help-words").appendChild(element("div"));
    line.appendChild(element("dt")).append(element("code", "", word));
    line.append(element("dd", "", told));
  }

  const query = $("query");
  let typing = 0;
  const search = () => {
    clearTimeout(typing);
    if (state.query === query.value) return;
    state.query = query.value;
    refilter();
    $("rows").scrollTop = 0;
    rows.draw();
  };
  query.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 120); // not at each letter of a word that is still typed
  });
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      search();
      $("grid").focus();
      if (state.order.length && state.place[state.chosen] < 0) choose(state.order[0]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (query.value) {
        query.value = "";
        search();
      } else $("grid").focus();
    }
    event.stopPropagation();
  });
  const clearAll = () => {
    query.value = state.query = "";
    for (const facet of Object.keys(FACETS)) state[facet] = "";
    refilter();
    if (state.place[state.chosen] >= 0) rows.show(state.place[state.chosen]);
  };
  $("clear").addEventListener("click", clearAll);

  const go = (place) => {
    if (!state.order.length) return;
    choose(state.order[Math.max(0, Math.min(state.order.length - 1, place))]);
  };
  const along = (step) => {
    const { members } = lanes[laneOf[Math.max(0, state.chosen)]] ?? { members: [] };
    for (let at = members.indexOf(state.chosen) + step; at >= 0 && at < members.length; at += step)
      if (state.place[members[at]] >= 0) return choose(members[at]);
    return undefined;
  };
  const KEYS = {
    j: () => go(state.place[state.chosen] + 1), ArrowDown: () => go(state.place[state.chosen] + 1),
    k: () => go(state.place[state.chosen] - 1), ArrowUp: () => go(state.place[state.chosen] - 1),
    PageDown: () => go(state.place[state.chosen] + rows.visible), PageUp: () => go(state.place[state.chosen] - rows.visible),
    g: () => go(0), Home: () => go(0), G: () => go(Infinity), End: () => go(Infinity),
    "]": () => along(1), "[": () => along(-1),
    "/": () => { query.focus(); query.select(); },
    "?": () => $("help").showModal(), t: toggleTheme, l: () => toggleLedger(),
    c: () => colourBy(state.colour === "command" ? "script" : "command"),
    "+": () => zoomToChosen(0.5), "=": () => zoomToChosen(0.5), "-": () => zoomToChosen(2), 0: fitAll,
    Escape: () => {
      if ($("detail").contains(document.activeElement)) {
        pin(null);
        $("grid").focus();
      } else clearAll();
    },
    Enter: () => {
      $("tree").focus();
      if (!pinned && branches.length > 1) {
        pin({ ...branches[1], byte: -1 });
        showInHex(branches[1]);
      }
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const { target, key } = event;
    if (target.closest("button, a") && (key === "Enter" || key === " ")) return;
    if (target === box && (key === "ArrowLeft" || key === "ArrowRight")) {
      event.preventDefault();
      const span = view.to - view.from;
      move(view.from + (key === "ArrowLeft" ? -0.2 : 0.2) * span, span);
      return;
    }
    if (target === $("hex") && /^(Arrow|Page|Home|End)/.test(key)) return;
    const act = Object.hasOwn(KEYS, key) ? KEYS[key] : null;
    if (!act) return;
    event.preventDefault();
    act();
  });

  const followHash = () => {
    const i = indexOf.get(location.hash.slice(1));
    if (i === undefined) return false;
    if (state.place[i] < 0) clearAll();
    choose(i, { hash: false });
    return true;
  };
  addEventListener("hashchange", followHash);

  // ---- Begin.

  const allUp = up.reduce((a, b) => a + b, 0), allDown = down.reduce((a, b) => a + b, 0);
  $("totals").replaceChildren(
    ...[
      [count.toLocaleString("en"), count === 1 ? " exchange" : " exchanges"],
      [lanes.length.toLocaleString("en"), lanes.length === 1 ? " connection" : " connections"],
      [new Set(trip.filter((n) => n >= 0)).size.toLocaleString("en"), " round trips"],
      [bytesTold(allUp), " B up"], [bytesTold(allDown), " B down"],
    ].flatMap(([number, unit], at) => [at ? "  \u00b7  " : "", element("b", "", number), unit]),
  );
  if (matchMedia("(max-width: 1180px)").matches) toggleLedger(false);
  retheme();
  refilter();
  colourBy("command");
  if (!followHash() && count) choose(0, { hash: false });
  if (!count) drawDetail(-1);
  root.dataset.ready = "";
})();
