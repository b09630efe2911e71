// What the next request sends, and what the last ones were estimated and cost.

import { get, post } from "./api.js";
import { button, fill, h } from "./dom.js";
import { about, dateTime, gap, known, number, percent, shortTime, t } from "./i18n.js";
import { daysPlot, requestsPlot } from "./plots.js";
import { busy, empty, folded, loadInto, note, toast } from "./ui.js";
import { zonesLine } from "./zones.js";

const MESSAGES = 30;
const FETCHED = 90;
const REQUESTS = 50;
const SECTIONS = ["system", "framing", "tools", "begin_dialogs", "fixed_memory", "summary", "window", "current", "recalled", "tool_steps", "reserve"];

function sectionName(name) {
  return known(`section.${name}`) ? t(`section.${name}`) : name;
}

function sectionClass(name) {
  return SECTIONS.includes(name) ? `part-${name}` : "part-other";
}

function budgetBar({ budget, sections }) {
  const used = sections.reduce((sum, section) => sum + section.tokens, 0);
  const whole = Math.max(budget, used, 1);
  const parts = sections.filter((section) => section.tokens > 0);
  const summary = t("next.used", { used: about(used), budget: number(budget), share: percent(used, budget) });
  return h("section", { class: "card" },
    h("div", { class: "card-head" }, h("h3", { class: "card-title" }, t("next.budget")), h("span", { class: "grow" }), h("span", { class: used > budget ? "over" : "" }, summary)),
    h("div", { class: "bar", role: "img", "aria-label": summary },
      parts.map((section) => h("span", { class: sectionClass(section.name), style: `width:${(section.tokens / whole) * 100}%`, title: `${sectionName(section.name)}: ${about(section.tokens)}` }))),
    h("ul", { class: "legend" },
      parts.map((section) => h("li", {}, h("span", { class: `swatch ${sectionClass(section.name)}`, "aria-hidden": "true" }), sectionName(section.name), " ", h("strong", {}, about(section.tokens)))),
      used < budget ? h("li", {}, h("span", { class: "swatch part-free", "aria-hidden": "true" }), t("section.free"), " ", h("strong", {}, about(budget - used))) : null));
}

function messageView(message) {
  const role = known(`role.${message.role}`) ? t(`role.${message.role}`) : message.role;
  const kind = known(`messageKind.${message.kind}`) ? t(`messageKind.${message.kind}`) : "";
  return h("li", { class: `message role-${["user", "assistant", "system", "tool"].includes(message.role) ? message.role : "other"}` },
    h("div", { class: "row-meta" }, h("strong", {}, role), kind ? h("span", { class: "chip" }, kind) : null,
      h("span", {}, t("versions.tokens", { tokens: about(message.tokens) }))),
    folded(message.text ?? "", message.role === "system" ? 300 : 600));
}

function leftOutView(left, session) {
  if (!left.messages && !left.reason) return h("p", { class: "hint" }, t("next.nothingLeft"));
  const reason = known(`reason.${left.reason}`) ? t(`reason.${left.reason}`) : left.reason;
  if (!left.messages) return note("info", reason);
  const total = session.row.coverage.total;
  return note("info",
    h("strong", {}, t("next.left", { turns: number(left.turns), messages: number(left.messages), tokens: about(left.tokens) })), gap(), reason, gap(),
    t("next.kept", { shown: number(Math.max(0, total - left.messages)), total: number(total) }), gap(), t("next.notLost"));
}

function topicView(preview, change) {
  if (!preview.topic) {
    const start = button(t("topic.start"), () => busy(start, () => change(false)), "tonal");
    return h("div", { class: "row" }, start, h("p", { class: "hint grow" }, t("topic.hint")));
  }
  const undo = button(t("topic.undo"), () => busy(undo, () => change(true)), "tonal");
  return note("info", t(`topic.${preview.topic.source}`, { time: dateTime(preview.topic.at) }), " ", undo);
}

function warningViews(preview) {
  return preview.warnings.map((name) => note("warning", t("next.third", { section: sectionName(name) })));
}

function windowLine(preview) {
  const text = preview.left_out.messages ? t("next.line", { turn: number(preview.first_turn + 1) }) : t("next.lineStart");
  return h("li", { class: "window-line" }, h("span", {}, text));
}

function messagesView(preview, first, loadAll) {
  const inWindow = (message) => message.kind !== "system" && message.kind !== "begin_dialog";
  const head = preview.messages.filter((message) => !inWindow(message));
  const recent = preview.messages.filter(inWindow);
  const list = h("ol", { class: "messages" });
  const foot = h("div", { class: "row" });
  const total = Math.max(recent.length, preview.messages_total - head.length);
  let shown = Math.min(first, recent.length);
  const older = () => {
    if (shown === recent.length) return loadAll();
    shown = Math.min(recent.length, shown + 2 * MESSAGES);
    return render();
  };
  const render = () => {
    const hidden = total - shown;
    fill(list, head.map(messageView), windowLine(preview),
      hidden ? h("li", { class: "window-line" }, button(t("next.older", { count: number(hidden) }), older, "tonal")) : null,
      recent.slice(recent.length - shown).map(messageView),
      h("li", { class: "window-line" }, h("span", {}, t("next.current"))));
    fill(foot, h("span", { class: "hint", role: "status" }, t("page.shown", { shown: number(shown), total: number(total) })));
  };
  render();
  return h("section", { class: "card" }, h("h3", { class: "card-title" }, t("next.messages")), list, foot);
}

function previewView(preview, session, first, loadAll, change) {
  const time = preview.as_of ? t("next.asOf", { time: dateTime(preview.as_of) }) : t("next.asOfNone");
  if (!preview.sections.length) {
    const reason = preview.left_out.reason;
    return h("div", { class: "stack" }, note(reason === "remote_agent" ? "info" : "warning", known(`reason.${reason}`) ? t(`reason.${reason}`) : reason || t("next.empty")));
  }
  return h("div", { class: "stack" },
    budgetBar(preview), warningViews(preview), h("p", { class: "hint" }, time), leftOutView(preview.left_out, session), zonesLine(preview.zones),
    topicView(preview, change),
    preview.messages.length ? messagesView(preview, first, loadAll) : empty(t("next.empty"), t("next.emptyHint")));
}

function requestsView({ items, days }) {
  if (!items.length) return empty(t("requests.none"), t("requests.noneHint"));
  const value = (each) => (each === null || each === undefined ? t("requests.unreported") : number(each));
  const cached = (item) => (item.cached_tokens === null || !item.prompt_tokens ? t("requests.unreported") : percent(item.cached_tokens, item.prompt_tokens));
  const window = (item) => (item.first_turn < item.total_turns ? `${number(item.first_turn + 1)}–${number(item.total_turns)}` : "–");
  const estimate = (item) => h("td", { class: item.budget && item.estimated > item.budget ? "over" : "", title: t("next.used", { used: about(item.estimated), budget: number(item.budget), share: percent(item.estimated, item.budget) }) }, about(item.estimated));
  const columns = ["time", "model", "estimated", "reported", "cachedShare", "output", "window", "left", "lightened", "plugin"];
  return h("div", { class: "stack" }, days.length > 1 ? daysPlot(days) : null, requestsPlot(items),
    h("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": t("requests.title") },
      h("table", {},
        h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, t(`requests.column.${name}`))))),
        h("tbody", {}, items.map((item) => h("tr", {},
          h("td", {}, h("time", { title: dateTime(item.time) }, shortTime(item.time))),
          h("td", {}, h("bdi", { class: "clip" }, item.model || "–")),
          estimate(item), h("td", {}, value(item.prompt_tokens)), h("td", {}, cached(item)),
          h("td", {}, value(item.output_tokens)), h("td", {}, window(item)), h("td", {}, value(item.left_out_turns)),
          h("td", {}, value(item.lightened)), h("td", {}, t("requests.milliseconds", { count: number(item.milliseconds) }))))))));
}

/** The tab. */
export function nextTab(session) {
  const sessionId = session.item.session_id;
  const preview = h("div", {});
  const requests = h("div", {});
  let left = false;
  session.onLeave(() => { left = true; });
  // A long chat is fetched whole only when somebody reads that far back.
  const loadPreview = (limit, first) => loadInto(preview, () => get("session/preview", { session_id: sessionId, ...limit }),
    (answer) => previewView(answer, session, first, () => loadPreview({}, 2 * FETCHED), changeTopic), () => !left);
  const changeTopic = async (undo) => {
    try {
      const { changed } = await post("session/topic", { session_id: sessionId, undo });
      toast(t(changed ? (undo ? "topic.undone" : "topic.started") : "topic.nothing"));
      load();
    } catch (error) {
      toast(error.message, "error");
    }
  };
  const load = () => {
    loadPreview({ limit: FETCHED }, MESSAGES);
    loadInto(requests, () => get("session/requests", { session_id: sessionId, limit: REQUESTS }), requestsView, () => !left);
  };
  load();
  return h("div", { class: "stack" },
    h("div", { class: "row" }, h("p", { class: "hint grow" }, t("next.hint")), button(t("action.refresh"), load, "tonal")),
    preview,
    h("section", { class: "card" }, h("h3", { class: "card-title" }, t("requests.title")), requests));
}
