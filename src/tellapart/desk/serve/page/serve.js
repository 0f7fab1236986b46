"use strict";
// The database is on the server.  This page shows a photo beside its look-alikes and sends decisions; a decision counts
// when the server has answered, and one that is sent again changes nothing.
const $ = (id) => document.getElementById(id);
const PAGE = 60, REVIEWS = { approved: "approved", rejected: "rejected", edited: "edited", "": "not reviewed" };
let shown = [], total = 0, group = null, decisions = [], known = -1, asked = 0;
let turn = Promise.resolve(), sent = Promise.resolve(), unsent = 0;
const drafts = new Map(), renewed = new Map(); // texts that are not saved, by photo; versions after decisions of this page

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

async function ask(path, method = "GET", body = undefined) {
  const raw = body instanceof Blob;
  let answer;
  try {
    answer = await fetch(path, { method, body: body === undefined || raw ? body : JSON.stringify(body),
      headers: body === undefined || raw ? {} : { "Content-Type": "application/json" } });
  } catch {
    throw new Error("The server cannot be reached; nothing was changed. Please try again.");
  }
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { code: answer.status });
  return content;
}

async function trying(work) {
  $("message").textContent = "";
  try {
    await work();
    return true;
  } catch (error) {
    $("message").textContent = error.message;
    return false;
  }
}

// The list

function query(offset) {
  return "api/photos?" + new URLSearchParams({ filter: $("filter").value || "all", search: $("search").value, offset, limit: PAGE });
}

async function reload(keep = true) {
  const number = ++asked, found = await ask(query(0));
  if (number !== asked) return; // a later question was quicker
  const current = keep && group ? group.photo.id : 0;
  shown = found.photos;
  total = found.total;
  list();
  const still = shown.find((one) => one.id === current) || shown[0];
  if (still && still.id !== current) await open(still.id);
  else if (!still && !current) empty();
}

async function more() {
  const found = await ask(query(shown.length));
  const known = new Set(shown.map((one) => one.id));
  shown.push(...found.photos.filter((one) => !known.has(one.id)));
  total = found.total;
  list();
}

function list() {
  $("found").textContent = total === 1 ? "1 photo" : `${total.toLocaleString("en")} photos`;
  $("photos").replaceChildren(...shown.map((photo) => make("li", {}, card(photo))));
  $("more").hidden = shown.length >= total;
  mark();
}

function picture(photo, size) {
  const image = make("img", { src: `photos/${photo.id}?size=${size}`, loading: size === "small" ? "lazy" : "eager", alt: size === "small" ? "" : `Photo ${photo.file}` });
  image.addEventListener("error", () => image.replaceWith(make("p", { className: "note" }, "no picture")));
  return image;
}

function words(photo) {
  if (!photo.caption) return [photo.error || "no caption"];
  return photo.words.flatMap(([text, own], place) => [place ? " " : "", own ? make("mark", {}, text) : text]);
}

function card(photo) {
  const button = make("button", { type: "button", className: "card" }, picture(photo, "small"),
    make("p", { className: "caption" }, ...words(photo)), make("p", { className: photo.review || "note" }, REVIEWS[photo.review]),
    make("p", { className: "file" }, photo.file));
  button.dataset.id = photo.id;
  button.addEventListener("click", () => act(() => trying(() => open(photo.id, true))));
  return button;
}

function mark() {
  for (const one of document.querySelectorAll(".card"))
    one.setAttribute("aria-current", String(group !== null && Number(one.dataset.id) === group.photo.id));
}

function follow() { // the list shows the photo
  const list = $("list"), current = $("photos").querySelector('[aria-current="true"]');
  if (!current || list.scrollHeight <= list.clientHeight) return; // it scrolls by itself only beside the photo
  const [all, own] = [list, current].map((one) => one.getBoundingClientRect());
  if (own.top < all.top || own.bottom > all.bottom) list.scrollTop += own.top - all.top;
}

// The photo

async function open(id, focus = false) {
  group = await ask(`api/photos/${id}`);
  draw(focus);
  ahead();
}

function show(photo) { // at once; its look-alikes come when they come
  group = { photo, look_alikes: [], near_duplicates: [], waiting: true };
  draw(true);
  ahead();
  const asking = group;
  trying(async () => {
    const found = await ask(`api/photos/${photo.id}`);
    if (group !== asking) return; // the person has gone on
    const changed = found.photo.version !== photo.version;
    group = found;
    if (changed && !drafts.has(photo.id)) draw();
    else fill();
  });
}

function ahead() {
  const place = shown.findIndex((one) => one.id === group.photo.id);
  if (place >= 0 && place + 2 >= shown.length && shown.length < total) trying(more);
}

function empty() {
  group = null;
  const narrowed = $("search").value || $("filter").value !== "all";
  const all = make("button", { type: "button" }, "Show all photos");
  all.addEventListener("click", () => trying(() => {
    $("search").value = "";
    $("filter").value = "all";
    return reload(false);
  }));
  $("photo").replaceChildren(make("p", {}, narrowed ? "No photo matches. " : "Captions appear here as they are made."), ...(narrowed ? [all] : []));
}

function draw(focus) {
  const photo = group.photo;
  const text = make("textarea", { id: "caption", value: drafts.get(photo.id) ?? photo.caption, rows: 2, maxLength: 2000 });
  text.addEventListener("input", () => {
    if (text.value.trim() === group.photo.caption) drafts.delete(photo.id);
    else drafts.set(photo.id, text.value); // until it is saved, or dropped by a click
    unsaved();
  });
  const heading = make("h2", { tabIndex: -1, id: "name" }, photo.file);
  const button = (name, label, key, work) => {
    const made = make("button", { type: "button", id: name, className: name === "approve" ? "go" : "" }, label, " ", make("kbd", {}, key));
    made.addEventListener("click", () => act(work));
    return made;
  };
  $("photo").replaceChildren(heading, make("div", { className: "picture" }, picture(photo, "large")),
    make("p", { className: "caption", id: "marked" }), make("ul", { className: "findings" }),
    make("label", { htmlFor: "caption" }, "Caption"), text, make("p", { id: "unsaved", className: "note" }),
    make("div", { className: "line" }, button("approve", "Approve", "a", () => decide("approved")),
      button("reject", "Reject", "r", () => decide("rejected")), button("save", "Save edit", "Ctrl Enter", () => decide("edited")),
      button("previous", "Previous", "k", () => step(-1)), button("next", "Next", "j", () => step(1))),
    make("p", { id: "review" }), make("div", { id: "alike" }));
  fill();
  mark();
  follow();
  if (focus && document.activeElement !== $("search")) { // who has begun to type there stays there
    heading.focus({ preventScroll: true }); // a screen reader reads on from here
    $("photo").scrollIntoView({ block: "nearest" });
  }
}

function fill() { // what is known of the photo beside its picture and what a person types
  const photo = group.photo, alike = group.look_alikes.length > 0;
  $("marked").hidden = !alike && Boolean(photo.caption);
  $("marked").replaceChildren(...words(photo));
  $("photo").querySelector(".findings").replaceChildren(...photo.findings.map((one) => make("li", {}, one.meaning)));
  $("review").className = photo.review || "note";
  $("review").replaceChildren(REVIEWS[photo.review], ...(photo.original ? [make("span", { className: "note" }, ` · before: ${photo.original}`)] : []));
  unsaved();
  const parts = [];
  for (const [title, note, others] of [
    ["Beside its look-alikes", "Marked: words that no other caption here has.", alike ? [photo, ...group.look_alikes] : []],
    ["Nearly the same picture", "These may share the caption.", group.near_duplicates]])
    if (others.length) parts.push(make("h2", {}, title), make("p", { className: "note" }, note),
      make("ul", { className: "group" }, ...others.map((one) => make("li", {}, card(one)))));
  if (photo.caption && !parts.length && !group.waiting) parts.push(make("p", { className: "note" }, "No other photo of the folder looks like this one."));
  $("alike").replaceChildren(...parts);
}

function unsaved() {
  const photo = group.photo, note = $("unsaved");
  note.hidden = !drafts.has(photo.id);
  if (note.hidden || note.firstChild) return;
  const drop = make("button", { type: "button", id: "drop" }, "Drop it");
  drop.addEventListener("click", () => {
    drafts.delete(photo.id);
    draw(true);
  });
  note.replaceChildren("This text is not saved yet. ", drop);
}

// What a person does, in its order: a key that comes while another is at work waits for it.  Decisions do not keep a
// person waiting: the next photo is there at once, and they are sent one after the other.

function act(work) {
  turn = turn.then(work).catch((error) => { $("message").textContent = error.message; });
}

async function decide(review) {
  if (!group) return;
  const photo = group.photo, typed = $("caption").value, changed = typed.trim() !== photo.caption;
  if (review !== "rejected" && !typed.trim()) return void ($("message").textContent = "A caption needs a word.");
  $("message").textContent = "";
  const body = { review: review === "rejected" || changed ? review : "approved" };
  if (changed && review !== "rejected") {
    body.caption = typed;
    drafts.delete(photo.id);
  }
  unsent += 1;
  sent = sent.then(() => send(photo, body));
  await step(1, true);
}

async function send(photo, body) {
  let version = photo.version; // or what decisions of this page have made of it meanwhile
  while (renewed.has(version)) version = renewed.get(version);
  try {
    const answer = await ask(`api/photos/${photo.id}`, "PATCH", { ...body, version });
    if (answer.decision) {
      decisions.push(answer.decision);
      if (answer.photo.version !== version) renewed.set(version, answer.photo.version);
    }
    tell(`${photo.file}: ${REVIEWS[answer.photo.review]}`);
    replace(answer.photo);
  } catch (error) {
    if (body.caption !== undefined && !drafts.has(photo.id)) drafts.set(photo.id, body.caption); // nobody types it again
    const again = make("button", { type: "button" }, "Look at it again"), line = make("li", {}, `${photo.file}: ${error.message} `, again);
    again.addEventListener("click", () => act(async () => {
      await open(photo.id, true);
      line.remove();
    }));
    $("failed").append(line);
    if (group && group.photo.id === photo.id) await trying(() => open(photo.id));
  }
  unsent -= 1;
  if (!unsent) await trying(counts);
}

async function undo() {
  await sent; // of what is under way, the last is meant
  await trying(async () => {
    const answer = await ask("api/undo", "POST", { decision: decisions.pop() ?? null });
    renewed.delete(answer.photo.version); // it is that of before
    tell(`${answer.photo.file}: undone, ${REVIEWS[answer.photo.review]}`);
    replace(answer.photo);
    await counts();
    await open(answer.photo.id, true);
  });
}

function replace(photo) {
  const place = shown.findIndex((one) => one.id === photo.id);
  if (place < 0) return;
  shown[place] = photo;
  $("photos").children[place].replaceChildren(card(photo));
  if (!group || group.photo.id !== photo.id) return;
  group.photo = { ...photo, words: group.photo.caption === photo.caption ? group.photo.words : photo.words };
  if (!drafts.has(photo.id)) $("caption").value = photo.caption;
  fill();
  mark();
}

async function step(by, decided = false) {
  const at = () => shown.findIndex((one) => group && one.id === group.photo.id);
  if (at() >= 0 && at() + by >= shown.length && shown.length < total) await trying(more);
  const next = at() < 0 ? shown[0] : shown[at() + by];
  if (next) show(next);
  else if (decided && group) {
    await sent;
    await trying(() => open(group.photo.id, true));
  }
}

function tell(text) {
  $("status").textContent = text;
}

// Jobs

async function counts() {
  const state = await ask("api/state");
  $("folder").textContent = state.folder || "";
  $("main").hidden = !state.folder;
  $("upload").hidden = Boolean(state.folder);
  $("more-tools").hidden = $("undo").hidden = !state.folder;
  const chosen = $("filter").value || "all";
  $("filter").replaceChildren(...Object.entries(state.filters).map(([name, label]) =>
    make("option", { value: name, selected: name === chosen }, `${label} (${state.counts[name] ?? 0})`)));
  const job = state.jobs.filter((one) => one.kind === "caption").at(-1);
  $("job").hidden = !job;
  if (job) {
    const left = job.seconds_left && job.state === "captioning" ? `, ${Math.ceil(job.seconds_left)} s left` : "";
    const failed = job.result.failed ? `, ${job.result.failed} could not be used` : "";
    $("job-text").textContent = job.state === "done" ? `${job.total} photos captioned${failed}`
      : job.error || `${job.state}: ${job.done} of ${job.total}${left}`;
    $("bar").hidden = job.state === "done";
    $("bar").max = job.total || 1;
    $("bar").value = job.done;
  }
  return state;
}

async function poll() {
  let wait = 10000;
  try {
    const state = await counts();
    const job = state.jobs.filter((one) => one.kind === "caption").at(-1);
    const running = job && job.state !== "done" && job.state !== "failed";
    if (running) wait = 1000;
    if (state.folder && state.counts.all !== known && shown.length < PAGE && document.activeElement !== $("caption")) {
      await reload(); // photos may have come between the list and this answer, however quick the job was
      known = state.counts.all;
    }
  } catch { /* the next decision will say it */ }
  setTimeout(poll, wait);
}

async function write(body) {
  await trying(async () => {
    $("written").textContent = "One moment …";
    let job = await ask("api/jobs", "POST", body);
    while (job.state !== "done" && job.state !== "failed") {
      await new Promise((done) => setTimeout(done, 200));
      job = await ask(`api/jobs/${job.id}`);
      $("written").textContent = `${job.state}: ${job.done} of ${job.total}`;
    }
    if (job.error) return void ($("written").textContent = job.error);
    const names = { write: job.result.dry_run ? "to write" : "written", keep: "keep a person's text", withdraw: "keep a person's text, and lose ours", unchanged: "unchanged", restored: "as before", withdrawn: "changed since, without our texts", failed: "failed" };
    const said = Object.entries(job.result.counts).map(([name, count]) => `${count} ${names[name] || name}`);
    const lines = [...(job.result.failed || []).map((one) => `${one.file}: ${one.reason}`), ...(job.result.problems || []),
      ...(job.result.dry_run ? job.result.files.map((one) => `${one.file}: ${one.action}: ${one.caption}`) : [])];
    $("written").replaceChildren(make("p", { id: "outcome" }, said.join("; ") || "nothing to do"),
      make("ul", { tabIndex: 0, ariaLabel: "Files" }, ...lines.map((line) => make("li", {}, line))));
    if (!lines.length) $("written").lastChild.remove();
  });
}

function writing(dry_run) {
  return { kind: "write", to: $("to").value, which: $("which").value, replace: $("replace").checked, dry_run };
}

async function upload() {
  const file = $("file").files[0];
  if (!file) return;
  const state = await ask("api/state");
  if (file.size > state.most_upload) return void ($("uploaded").textContent = `Photos may have ${state.most_upload >> 20} MB at most.`);
  $("uploaded").textContent = "One moment …";
  if (!await trying(async () => { $("uploaded").textContent = (await ask("api/caption", "POST", file)).caption; })) $("uploaded").textContent = "";
}

// Keys

function toggle(button, section) {
  const opened = $(section).hidden;
  $(section).hidden = !opened;
  $(button).setAttribute("aria-expanded", String(opened));
}

addEventListener("keydown", (event) => {
  const typing = event.target.matches("textarea, input, select");
  if (event.key === "Escape" && typing) {
    event.target.blur(); // a text that is not saved stays
    return;
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.id === "caption") {
    event.preventDefault();
    act(() => decide("edited"));
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = { a: () => act(() => decide("approved")), r: () => act(() => decide("rejected")), u: () => act(undo),
    j: () => act(() => step(1)), k: () => act(() => step(-1)), e: () => act(() => $("caption")?.focus()),
    "/": () => $("search").focus(), "?": () => toggle("help", "keys") };
  if (!actions[event.key]) return;
  event.preventDefault();
  if (event.repeat && "aru".includes(event.key)) return; // a key that is held down decides once
  actions[event.key]();
});

addEventListener("beforeunload", (event) => { if (unsent || drafts.size) event.preventDefault(); });

let waiting = 0;
$("search").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => trying(() => reload(false)), 200);
});
$("filter").addEventListener("change", () => trying(() => reload(false)));
$("more").addEventListener("click", () => trying(more));
$("undo").addEventListener("click", () => act(undo));
$("help").addEventListener("click", () => toggle("help", "keys"));
$("more-tools").addEventListener("click", () => toggle("more-tools", "tools"));
$("which").addEventListener("change", () => {
  for (const format of ["jsonl", "csv"]) $(format).href = `api/export?format=${format}&which=${$("which").value}`;
});
$("preview").addEventListener("click", () => write(writing(true)));
$("write").addEventListener("click", () => write(writing(false)));
$("undo-write").addEventListener("click", () => write({ kind: "undo-write" }));
$("file").addEventListener("change", upload);
$("which").dispatchEvent(new Event("change"));
trying(async () => { if ((await counts()).folder) await reload(); }).then(poll);
