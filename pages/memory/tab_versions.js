// Every version of the summary, what changed between two of them, and the way back.

import { get, post } from "./api.js";
import { button, fill, h } from "./dom.js";
import { changedPart, diffLines, paired } from "./diff.js";
import { isFieldDirty, rebase } from "./drafts.js";
import { ago, dateTime, known, number, t } from "./i18n.js";
import { confirmDialog, empty, failed, loading, note, toast } from "./ui.js";

const PAGE = 20;
const CONTEXT = 3;
const ROWS = 400;

/** A changed line with the changed part marked, where its counterpart is similar enough. */
function partsOf(row) {
  if (row.pair === undefined) return row.text;
  const [start, change, end] = changedPart(row.text, row.pair);
  if ((start.length + end.length) * 2 < Math.max(row.text.length, row.pair.length)) return row.text;
  return [start, h(row.kind === "del" ? "del" : "ins", {}, change), end];
}

function nearChange(rows, at) {
  return rows.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some((row) => row.kind !== "same");
}

/** A readable diff: only the changes with a little around them. */
export function diffView(oldText, newText) {
  const rows = paired(diffLines(oldText, newText));
  if (!rows.some((row) => row.kind !== "same")) return h("p", { class: "hint" }, t("versions.same"));
  const box = h("div", { class: "diff", role: "group", tabindex: "0", "aria-label": t("versions.diff") });
  let skipped = false;
  let shown = 0;
  rows.forEach((row, at) => {
    if (shown >= ROWS) return;
    if (!nearChange(rows, at)) {
      if (!skipped) box.append(h("div", { class: "diff-row diff-skip" }, "⋯"));
      skipped = true;
      return;
    }
    skipped = false;
    shown += 1;
    const sign = { same: " ", del: "−", add: "+" }[row.kind];
    const label = row.kind === "same" ? null : h("span", { class: "sr-only" }, t(`versions.${row.kind}`));
    box.append(h("div", { class: `diff-row diff-${row.kind}` },
      h("span", { class: "diff-sign", "aria-hidden": "true" }, sign), label,
      h("span", { class: "diff-text", dir: "auto" }, partsOf(row))));
  });
  if (shown >= ROWS) box.append(h("div", { class: "diff-row diff-skip" }, t("versions.cut")));
  return box;
}

/** The tab. */
export function versionsTab(session) {
  const node = h("div", { class: "stack" });
  const list = h("div", { class: "stack" });
  const foot = h("div", { class: "row" });
  let items = [];
  let left = false;
  session.onLeave(() => { left = true; });

  function page(offset) {
    return get("session/versions", { session_id: session.item.session_id, limit: PAGE, offset });
  }

  async function restore(version) {
    const word = version.conflicting ? "adopt" : "restore";
    const unsaved = isFieldDirty(session.item.session_id, "summary");
    const sure = await confirmDialog({
      title: t(`versions.${word}Title`),
      body: [h("p", {}, t("versions.restoreText", { time: dateTime(version.created_at) })),
        unsaved ? note("warning", t("versions.restoreUnsaved")) : null],
      confirm: t(`versions.${word}`),
    });
    if (!sure) return;
    try {
      const row = await post("session/restore", { session_id: session.item.session_id, version_id: version.id, revision: session.row.revision });
      rebase(row);
      session.take(row);
      await session.counts().catch(() => {});
      toast(t("versions.restored"), "success");
      load();
    } catch (error) {
      await session.reload().catch(() => {});
      await load();
      fill(foot, note("error", error.message));
    }
  }

  function body(version, at) {
    const older = items[at + 1];
    const current = session.row.summary;
    const box = h("div", {});
    const choices = [
      ["current", t("versions.againstCurrent"), () => diffView(version.text, current)],
      ["previous", t("versions.againstPrevious"), () => diffView(older?.text ?? "", version.text)],
      ["text", t("versions.fullText"), () => h("pre", { class: "plain", dir: "auto", tabindex: "0", "aria-label": t("versions.fullText") }, version.text || t("memory.nothing"))],
    ].filter(([key]) => key !== "previous" || older);
    const picks = h("div", { class: "row segments", role: "group", "aria-label": t("versions.compare") });
    const pick = (key) => {
      for (const item of picks.children) item.setAttribute("aria-pressed", String(item.dataset.key === key));
      fill(box, choices.find(([each]) => each === key)[2]());
    };
    picks.append(...choices.map(([key, label]) => button(label, () => pick(key), "segment", { "data-key": key, "aria-pressed": "false" })));
    pick(version.text === current ? (older ? "previous" : "text") : "current");
    return h("div", { class: "stack" }, picks, box,
      h("div", { class: "row end" }, button(t(version.conflicting ? "versions.adopt" : "versions.restore"), () => restore(version), "tonal", { disabled: version.text === current })));
  }

  function entry(version, at) {
    const current = at === items.findIndex((each) => each.text === session.row.summary);
    const content = h("div", {});
    const source = known(`versions.source.${version.source}`) ? t(`versions.source.${version.source}`) : version.source;
    const meta = [
      version.model ? h("bdi", { class: "clip" }, version.model) : null,
      version.covered ? h("span", {}, t("versions.covered", { count: number(version.covered) })) : null,
      h("span", {}, t("versions.tokens", { tokens: number(version.tokens) })),
    ];
    const details = h("details", { class: "card version", "data-version": version.id },
      h("summary", {},
        h("span", { class: "row-top" },
          h("span", { class: "session-name" }, source),
          current ? h("span", { class: "chip chip-success" }, t("versions.current")) : null,
          version.conflicting ? h("span", { class: "chip chip-warning" }, t("versions.conflicting")) : null),
        h("span", { class: "row-meta" }, h("time", { title: dateTime(version.created_at) }, ago(version.created_at)), meta)),
      content);
    details.addEventListener("toggle", () => { if (details.open) fill(content, body(version, at)); });
    return details;
  }

  function render(total) {
    if (!items.length) {
      fill(list, empty(t("versions.none"), t("versions.noneHint")));
      fill(foot);
      return;
    }
    fill(list, items.map(entry));
    fill(foot, h("span", { class: "hint", role: "status" }, t("page.shown", { shown: number(items.length), total: number(total) })),
      items.length < total ? button(t("page.more"), more, "tonal") : null);
  }

  async function more() {
    try {
      const answer = await page(items.length);
      items = [...items, ...answer.items];
      if (!left) render(answer.total);
    } catch (error) {
      fill(foot, failed(error, more));
    }
  }

  async function load() {
    fill(list, loading());
    try {
      const answer = await page(0);
      items = answer.items;
      if (!left) render(answer.total);
    } catch (error) {
      if (!left) fill(list, failed(error, load));
    }
  }

  load();
  return fill(node, h("p", { class: "hint" }, t("versions.hint")), list, foot);
}
