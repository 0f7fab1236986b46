"use strict";
// The server knows what comes next; this page shows it, and sends an answer until the server has stored it.
const main = document.getElementById("main"), message = document.getElementById("message");
const progress = document.getElementById("progress"), address = new URLSearchParams(location.search);
const KEY = "tellapart-person" + (address.get("PROLIFIC_PID") || "");
const CRITERIA = { accuracy: "Which caption describes the photo more accurately?",
  distinctiveness: "Which caption is more informative about this photo?" };
let study, shown, me; // me: who this is to the server; known to this browser alone

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function show(title, ...parts) {
  const heading = make("h1", { tabIndex: -1 }, title);
  main.replaceChildren(heading, ...parts);
  scrollTo(0, 0);
  heading.focus(); // a screen reader reads on from here
}

async function ask(path, body) {
  const answer = await fetch(path, body && { method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" } });
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error), { code: answer.status });
  return content;
}

async function send(button, path, body) {
  button.disabled = true;
  message.textContent = "";
  try {
    next(await ask(path, body));
  } catch (error) {
    message.textContent = error.code ? `Sorry: ${error.message}` : "The server cannot be reached. Please try again.";
    button.disabled = false; // the same answer may be sent again: it counts once
  }
}

function go(text, action, disabled = false) {
  const button = make("button", { className: "go", type: "button", disabled }, text);
  button.addEventListener("click", () => action(button));
  return button;
}

function stored() {
  try { return localStorage.getItem(KEY); } catch { return null; } // a private window: only this page remembers
}

function remember(person) {
  me = person;
  try { localStorage.setItem(KEY, me); } catch { /* as above */ }
}

function consent() {
  const agree = make("input", { type: "checkbox", id: "agree" });
  const start = go("Start", (button) => {
    // made here and kept before it is sent: who asks again, because the answer got lost, is the same person
    const random = Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0"));
    remember(me || stored() || random.join(""));
    send(button, "api/join", { consent: agree.checked, person: me, subject_id: address.get("PROLIFIC_PID") || null,
      study_id: address.get("STUDY_ID") || "", session_id: address.get("SESSION_ID") || "" });
  }, true);
  agree.addEventListener("change", () => { start.disabled = !agree.checked; });
  show(study.title, make("p", { className: "consent" }, study.consent),
    make("label", {}, agree, "I have read this and agree to take part."), start);
}

function next(state) {
  remember(state.person);
  progress.textContent = `${state.done} of ${state.total} done`;
  if (!state.trial) return thanks(state.completion_code);
  shown = performance.now();
  const answer = (button, response) => send(button, "api/answers", { person: state.person, trial: state.trial.id,
    response, rt: performance.now() - shown });
  ({ choose, order, compare })[study.kind](state.trial, answer);
}

function picture(id, number) {
  return make("img", { src: `photos/${encodeURIComponent(id)}`, alt: `Photo ${number}` });
}

function photos(trial, pressed) {
  const buttons = trial.photos.map((id, place) => {
    const button = make("button", { className: "photo", type: "button" }, picture(id, place + 1));
    button.setAttribute("aria-pressed", "false");
    button.dataset.photo = id;
    button.addEventListener("click", () => pressed(id));
    return button;
  });
  return [make("ul", { className: "photos" }, ...buttons.map((button, place) =>
    make("li", {}, button, make("small", { ariaHidden: "true" }, `Photo ${place + 1}`)))), buttons];
}

function asked(trial, ...more) { // stays on the screen while somebody looks through the photos
  return make("div", { className: "stays" }, make("p", { className: "caption" }, trial.captions[0]), ...more);
}

function choose(trial, answer) {
  let chosen = null;
  const [list, buttons] = photos(trial, (id) => {
    chosen = id;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.photo === id));
    done.disabled = false;
  });
  const done = go("Next", (button) => answer(button, chosen), true);
  show("Which photo does the caption describe?", asked(trial), list, done);
}

function order(trial, answer) {
  const wanted = Math.min(study.ordered, trial.photos.length), chosen = [];
  const [list, buttons] = photos(trial, (id) => {
    const place = chosen.indexOf(id);
    if (place >= 0) chosen.splice(place, 1);
    else if (chosen.length < wanted) chosen.push(id);
    buttons.forEach((button, number) => {
      const rank = chosen.indexOf(button.dataset.photo) + 1;
      button.setAttribute("aria-pressed", String(rank > 0));
      button.setAttribute("aria-label", `Photo ${number + 1}` + (rank ? `, place ${rank}` : ""));
      button.querySelector(".rank")?.remove();
      if (rank) button.append(make("span", { className: "rank" }, String(rank)));
    });
    count.textContent = counted();
    done.disabled = chosen.length < wanted;
  });
  const counted = () => `${chosen.length} of ${wanted} chosen. ` + (chosen.length ? "Choose a photo again to take it back." : "");
  const count = make("small", {}, counted());
  count.setAttribute("role", "status");
  const done = go("Next", (button) => answer(button, chosen), true);
  show(`Choose the ${wanted} photos that fit the caption best, the best first`,
    asked(trial, count), list, done);
}

function compare(trial, answer) {
  const response = {};
  const questions = Object.entries(CRITERIA).map(([name, question]) => make("fieldset", {}, make("legend", {}, question),
    ...[["first", "The first caption"], ["tie", "Both equally"], ["second", "The second caption"]].map(([value, text]) => {
      const input = make("input", { type: "radio", name, value });
      input.addEventListener("change", () => { response[name] = value; done.disabled = Object.keys(response).length < 2; });
      return make("label", {}, input, text);
    })));
  const done = go("Next", (button) => answer(button, response), true);
  const photo = picture(trial.photos[0], 1);
  photo.className = "alone";
  photo.alt = "The photo that both captions describe";
  show("Two captions of one photo", photo, ...trial.captions.map((text, place) =>
    make("p", { className: "caption" }, make("small", {}, place ? "Second: " : "First: "), text)), ...questions, done);
}

function thanks(code) {
  progress.textContent = "";
  const parts = [make("p", {}, "All your answers are stored. Your completion code is:"), make("p", {}, make("code", { id: "code" }, code))];
  if (address.get("PROLIFIC_PID")) parts.push(make("p", {}, make("a",
    { href: `https://app.prolific.com/submissions/complete?cc=${encodeURIComponent(code)}` }, "Back to Prolific")));
  show("Thank you!", ...parts);
}

async function begin() {
  try {
    study = await ask("api/study");
    document.title = study.title;
    const person = me || stored();
    if (!person) return consent();
    try {
      next(await ask(`api/people/${encodeURIComponent(person)}`));
    } catch (error) {
      if (error.code !== 404) throw error;
      consent(); // of another study at this address
    }
  } catch (error) {
    message.textContent = "The study cannot be loaded.";
    main.replaceChildren(go("Try again", begin));
  }
}
// a page that comes back by the back button shows what was; ask again what is next
addEventListener("pageshow", (event) => { if (event.persisted) begin(); });
begin();
