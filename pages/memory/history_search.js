// Search of the archive: one session's messages or, for the operator, all of them.

import { get } from "./api.js";
import { button, field, fill, h } from "./dom.js";
import { dateTime, known, number, t } from "./i18n.js";
import { busy, empty, failed, loading } from "./ui.js";

const PAGE = 20;
const ROLES = ["", "user", "assistant", "tool"];
const MARKS = /[⟪⟫]/;

function marked(snippet) {
  return snippet.split(MARKS).map((piece, index) => (index % 2 ? h("mark", {}, piece) : piece));
}

function roleName(role) {
  return known(`role.${role}`) ? t(`role.${role}`) : role;
}

/** Seconds at which a day of a date field begins; nothing for an empty field. */
function dayStart(value, days = 0) {
  if (!value) return undefined;
  const [year, month, day] = value.split("-").map(Number);
  return Math.max(0, Math.floor(new Date(year, month - 1, day + days).getTime() / 1000));
}

function choice(options, text) {
  return h("select", { class: "input" }, options.map((value) => h("option", { value }, text(value))));
}

/** The search; go(hit) shows the place of a hit. */
export function historySearch(sessionId, go, stillWanted) {
  const words = h("input", { type: "text", class: "input grow", maxlength: 2000, placeholder: t("search.placeholder"), "aria-label": t("search.placeholder"), enterkeyhint: "search" });
  const scope = choice(["here", "all"], (value) => t(`search.${value}`));
  const role = choice(ROLES, (value) => (value ? roleName(value) : t("search.everyone")));
  const since = h("input", { type: "date", class: "input" });
  const until = h("input", { type: "date", class: "input" });
  const results = h("div", { class: "stack", "aria-live": "polite" });
  const start = button(t("search.start"), null, "primary", { type: "submit" });
  let asked = 0;

  function query() {
    const all = {
      q: words.value.trim(), session_id: scope.value === "here" ? sessionId : undefined, role: role.value || undefined,
      since: dayStart(since.value), until: dayStart(until.value, 1), limit: PAGE,
    };
    return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined));
  }

  function hitView(hit, everywhere) {
    return h("li", {}, h("button", { type: "button", class: "session-row hit", "data-hit": hit.id, onclick: () => go(hit) },
      h("span", { class: "row-meta" },
        h("strong", {}, hit.sender ? h("bdi", {}, hit.sender) : roleName(hit.role)),
        h("time", {}, dateTime(hit.time)),
        everywhere ? h("bdi", { class: "chip clip" }, hit.session_name || t("list.unnamed")) : null,
        h("bdi", { class: "clip" }, hit.title || t("history.untitled")),
        hit.in_host ? null : h("span", { class: "chip" }, t("history.gone"))),
      h("span", { class: "wrap" }, marked(hit.snippet))));
  }

  function render(answer, asking, list) {
    const shown = asking.offset + answer.items.length;
    list.append(...answer.items.map((hit) => hitView(hit, !asking.session_id)));
    const more = button(t("search.more"), () => busy(more, () => load({ ...asking, offset: shown }, list)), "tonal");
    const count = h("p", { class: "hint", role: "status" }, t("search.count", { shown: number(shown), total: number(answer.total) }));
    fill(results, count, list, shown < answer.total && answer.items.length ? more : null);
  }

  async function load(asking, list) {
    asked += 1;
    const mine = asked;
    const wanted = () => mine === asked && stillWanted();
    if (!asking.offset) fill(results, loading());
    try {
      const answer = await get("history", asking);
      if (!wanted()) return;
      if (answer.total) render(answer, asking, list);
      else fill(results, empty(t("search.none"), t("search.noneHint")));
    } catch (error) {
      if (wanted()) fill(results, failed(error, () => load(asking, list)));
    }
  }

  function submit(event) {
    event.preventDefault();
    if (!words.value.trim()) {
      asked += 1;
      fill(results);
      words.focus();
      return;
    }
    load({ ...query(), offset: 0 }, h("ol", { class: "messages" }));
  }

  return h("form", { role: "search", class: "stack", "aria-label": t("search.title"), onsubmit: submit },
    h("div", { class: "row" }, words, start),
    h("div", { class: "row search-filters" },
      field(t("search.scope"), scope), field(t("search.role"), role), field(t("search.since"), since), field(t("search.until"), until)),
    results);
}
