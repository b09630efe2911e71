// Puts the page together: list on one side, a session or the transfer on the other.

import { connectionLost, get, onConnection, retryNow } from "./api.js";
import { button, fill, h } from "./dom.js";
import { dirtyCount, onDrafts } from "./drafts.js";
import { locale, t } from "./i18n.js";
import { createList } from "./list.js";
import { createSession } from "./session.js";
import { transferView } from "./transfer.js";
import { empty } from "./ui.js";
import { warningsLine } from "./warnings.js";

const bridge = window.AstrBotPluginPage;
const app = document.getElementById("app");

const state = { pane: "list", session: null, item: null, health: null, transfer: false, shownLocale: "" };
const parts = {};

function setPane(pane) {
  state.pane = pane;
  app.dataset.pane = pane;
}

function closeSession() {
  state.session?.close();
  state.session = null;
  state.transfer = false;
}

/** Opens the session in which a search over all of them found something. */
async function visit(hit) {
  const { items } = await get("sessions", { q: hit.session_id, limit: 200 });
  const item = items.find((each) => each.session_id === hit.session_id);
  if (item) openSession(item, hit);
}

function openSession(item, place = null) {
  closeSession();
  state.item = { ...item };
  const changed = () => parts.list.load({ quiet: true });
  const session = createSession(state.item, { back: showList, changed, visit, place });
  state.session = session;
  fill(parts.detail, session.node);
  parts.list.select(item.session_id);
  setPane("detail");
  parts.detail.scrollTop = 0;
  session.load().then(() => { if (state.session === session) session.node.querySelector("[role=tab][aria-selected=true]")?.focus({ preventScroll: true }); });
}

async function showList() {
  closeSession();
  const sessionId = state.item?.session_id;
  state.item = null;
  parts.list.select("");
  showNothing();
  setPane("list");
  await parts.list.load({ quiet: true });
  [...parts.list.node.querySelectorAll(".session-row")].find((row) => row.dataset.session === sessionId)?.focus();
}

function showNothing() {
  fill(parts.detail, empty(t("app.pick"), t("app.pickHint")));
}

function openTransfer() {
  closeSession();
  state.item = null;
  parts.list.select("");
  fill(parts.detail, h("article", { class: "session" },
    h("header", { class: "session-head" },
      button("‹", showList, "icon", { class: "btn btn-icon back", "aria-label": t("action.back") }),
      h("h2", { class: "grow" }, t("tab.transfer"))),
    transferView(null, () => parts.list.load({ quiet: true }))));
  setPane("detail");
  state.transfer = true;
}

function renderUnsaved() {
  const count = dirtyCount();
  parts.unsaved.hidden = count === 0;
  fill(parts.unsaved, t("app.unsaved", { count }));
}

function renderConnection() {
  parts.connection.hidden = !connectionLost();
  fill(parts.connection, h("span", { class: "grow" }, t("app.lost")), button(t("action.retry"), retryNow, "tonal"));
}

/** Builds everything in the current language; drafts and the open view stay. */
function build() {
  state.shownLocale = locale();
  document.documentElement.lang = locale();
  document.title = t("title");
  const { item, transfer } = state;
  closeSession();
  parts.list = createList((item) => openSession(item));
  parts.detail = h("main", { class: "detail" });
  parts.unsaved = h("p", { class: "chip chip-warning", role: "status" });
  parts.warnings = h("div", {});
  parts.connection = h("div", { class: "connection", role: "alert" });
  fill(app, parts.connection,
    h("header", { class: "app-head" }, h("h1", {}, t("title")), parts.unsaved, h("span", { class: "grow" }),
      button(t("tab.transfer"), openTransfer, "text")),
    parts.warnings,
    h("div", { class: "panes" }, parts.list.node, parts.detail));
  renderUnsaved();
  renderConnection();
  fill(parts.warnings, warningsLine(state.health));
  if (item) openSession(item);
  else if (transfer) openTransfer();
  else {
    showNothing();
    setPane(state.pane);
  }
  parts.list.load();
}

async function loadHealth() {
  state.health = await get("health").catch(() => null);
  fill(parts.warnings, warningsLine(state.health));
}

function onBack(lost) {
  renderConnection();
  if (lost) return;
  parts.list.load({ quiet: true });
  const broken = parts.detail.querySelector(".state-error button");
  broken?.click();
  if (!state.health) loadHealth();
}

await bridge.ready();
setPane("list");
build();
loadHealth();
onConnection(onBack);
onDrafts(() => { renderUnsaved(); parts.list.refreshMarks(); });
bridge.onContext(() => { if (locale() !== state.shownLocale) build(); });
