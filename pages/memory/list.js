// The list of sessions: search, filters and paging are the server's work.

import { get } from "./api.js";
import { button, fill, h } from "./dom.js";
import { isDirty } from "./drafts.js";
import { ago, dateTime, number, t } from "./i18n.js";
import { empty, failed, loading } from "./ui.js";

const PAGE = 50;
const KINDS = ["", "group", "private", "webchat", "other"];
const TYPING_MS = 250;

const query = { q: "", kind: "", platform: "", offset: 0 };
const platforms = new Set();

export function nameOf(item) {
  return item.display_name || t("list.unnamed");
}

function select(label, values, current, text, onchange) {
  return h("select", { "aria-label": label, class: "input", onchange: (event) => onchange(event.target.value) },
    values.map((value) => h("option", { value, selected: value === current }, text(value))));
}

/** Builds the list; open(item) is called for a chosen session. */
export function createList(open) {
  const rows = h("div", { class: "rows" });
  const pager = h("div", { class: "pager" });
  const platformBox = h("div", { class: "grow" });
  let selected = "";
  let items = [];
  let asked = 0;
  let timer = 0;

  const search = h("input", {
    type: "search", class: "input", value: query.q, placeholder: t("list.search"), "aria-label": t("list.search"), maxlength: 200,
    oninput: (event) => {
      clearTimeout(timer);
      timer = setTimeout(() => change({ q: event.target.value.trim() }), TYPING_MS);
    },
  });

  function change(values) {
    Object.assign(query, { offset: 0 }, values);
    return load();
  }

  function renderPlatforms() {
    fill(platformBox, select(t("list.platform"), ["", ...[...platforms].sort()], query.platform,
      (value) => value || t("list.allPlatforms"), (platform) => change({ platform })));
  }

  function row(item) {
    const dirty = isDirty(item.session_id);
    const memory = number(item.fixed_memory_tokens);
    const summary = number(item.summary_tokens);
    return h("button", {
      type: "button", class: "session-row", "data-session": item.session_id,
      "aria-current": item.session_id === selected ? "true" : null,
      onclick: () => open(item),
    },
    h("span", { class: "row-top" },
      h("bdi", { class: "session-name" }, nameOf(item)),
      dirty ? h("span", { class: "chip chip-warning" }, t("list.unsaved")) : null),
    h("span", { class: "row-meta" },
      h("span", { class: `chip kind-${item.kind}` }, t(`kind.${item.kind}`)),
      h("bdi", { class: "clip" }, item.platform),
      h("time", { title: dateTime(item.last_seen_at) }, ago(item.last_seen_at))),
    h("span", { class: "row-meta" }, t("list.holds", { memory, summary })));
  }

  function filtered() {
    return Boolean(query.q || query.kind || query.platform);
  }

  function clear() {
    search.value = "";
    kindSelect.value = "";
    change({ q: "", kind: "", platform: "" });
  }

  function renderRows(total) {
    if (!items.length) {
      fill(rows, filtered()
        ? empty(t("list.noneFound"), "", button(t("list.clear"), clear, "tonal"))
        : empty(t("list.none"), t("list.noneHint")));
    } else fill(rows, items.map(row));
    const last = query.offset + items.length;
    const first = items.length ? query.offset + 1 : 0;
    const go = (offset) => { query.offset = offset; load(); };
    fill(pager,
      button("‹", () => go(Math.max(0, query.offset - PAGE)), "icon", { "aria-label": t("list.previous"), disabled: query.offset === 0 }),
      h("span", { role: "status" }, t("list.range", { first: number(first), last: number(last), total: number(total) })),
      button("›", () => go(query.offset + PAGE), "icon", { "aria-label": t("list.next"), disabled: last >= total }));
  }

  let total = 0;

  async function load({ quiet = false } = {}) {
    asked += 1;
    const mine = asked;
    if (!quiet) fill(rows, loading());
    try {
      const answer = await get("sessions", { ...query, limit: PAGE });
      if (mine !== asked) return;
      ({ items, total } = answer);
      (answer.platforms ?? items.map((item) => item.platform)).filter(Boolean).forEach((name) => platforms.add(name));
      renderPlatforms();
      renderRows(total);
    } catch (error) {
      if (mine === asked && !quiet) fill(rows, failed(error, () => load()));
    }
  }

  const kindSelect = select(t("list.kind"), KINDS, query.kind, (kind) => t(kind ? `kind.${kind}` : "list.allKinds"), (kind) => change({ kind }));
  renderPlatforms();
  const node = h("section", { class: "list", "aria-label": t("list.title") },
    h("div", { class: "filters" }, search, h("div", { class: "row" }, h("div", { class: "grow" }, kindSelect), platformBox,
      button("↻", () => load(), "icon", { "aria-label": t("action.refresh"), title: t("action.refresh") }))),
    rows, pager);

  return {
    node,
    load,
    refreshMarks: () => { if (items.length) renderRows(total); },
    select: (sessionId) => { selected = sessionId; if (items.length) renderRows(total); },
  };
}
