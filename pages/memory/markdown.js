// Markdown as a preview: marked makes HTML, DOMPurify keeps only plain formatting.
//
// Links and pictures become text: the frame must neither navigate nor load
// anything that a stored text names.

import { Marked } from "./vendor/marked.esm.js";
import DOMPurify from "./vendor/purify.es.mjs";

const LIMIT = 100_000;
const TAGS = ["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "strong", "em", "del", "code", "pre",
  "blockquote", "table", "thead", "tbody", "tr", "th", "td", "hr", "br"];

function escaped(text) {
  const node = document.createElement("span");
  node.textContent = text;
  return node.innerHTML;
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // Raw HTML is part of what the user wrote: shown, not interpreted.
    html(token) {
      return escaped(token.text);
    },
    link(token) {
      const label = this.parser.parseInline(token.tokens);
      return token.text === token.href ? label : `${label} (${escaped(token.href)})`;
    },
    image(token) {
      return `[${escaped(token.text)}] (${escaped(token.href)})`;
    },
  },
});

/** The nodes that show a Markdown text. */
export function preview(text) {
  const html = marked.parse(text.slice(0, LIMIT));
  return DOMPurify.sanitize(html, { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: [], ALLOW_DATA_ATTR: false, RETURN_DOM_FRAGMENT: true });
}
