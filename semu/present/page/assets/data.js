// What a page carries: JSON and typed arrays, both deflated and in base64.

/** @typedef {{at: number, n: number, type: "f8"|"f4"|"u4"|"u2"|"u1"}} Place */
/** @typedef {Float64Array|Float32Array|Uint32Array|Uint16Array|Uint8Array} Numbers */

/** Numbers of a page by their place. */
class Store {
  /** @param {ArrayBuffer} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }

  /** @param {Place} place @returns {Numbers} */
  of(place) {
    switch (place.type) {
      case "f8": return new Float64Array(this.bytes, place.at, place.n);
      case "f4": return new Float32Array(this.bytes, place.at, place.n);
      case "u4": return new Uint32Array(this.bytes, place.at, place.n);
      case "u2": return new Uint16Array(this.bytes, place.at, place.n);
      default: return new Uint8Array(this.bytes, place.at, place.n);
    }
  }
}

/** @param {string} id of the element whose text is packed @returns {Promise<ArrayBuffer>} */
async function unpacked(id) {
  const packed = atob(byId(id).textContent || "");
  const raw = new Uint8Array(packed.length);
  for (let i = 0; i < raw.length; i++) raw[i] = packed.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** @param {string} id @returns {HTMLElement} */
function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element ${id}`);
  return found;
}

/**
 * An element with text, attributes and children.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, string>} attributes @param {...(Node|string)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
function make(tag, attributes, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

/** @type {Map<string, string>} */
const INKS = new Map();

/** A colour of the style sheet. @param {string} name @returns {string} */
function ink(name) {
  let found = INKS.get(name);
  if (found === undefined) INKS.set(name, (found = getComputedStyle(document.documentElement).getPropertyValue(name).trim()));
  return found;
}

/** Seconds for a person. @param {number} s @returns {string} */
function seconds(s) {
  const size = Math.abs(s);
  if (size >= 1 || size === 0) return `${s.toFixed(3)} s`;
  return size >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(1)} us`;
}

/** What draws again when the colours change. @type {(() => void)[]} */
const REPAINTS = [];

/** Calls back when the colours change. @param {() => void} again */
function onTheme(again) {
  REPAINTS.push(again);
}

function repaint() {
  INKS.clear();
  for (const again of REPAINTS) again();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
// Paper is light.
for (const [name, isPaper] of /** @type {[string, boolean][]} */ ([["beforeprint", true], ["afterprint", false]]))
  addEventListener(name, () => {
    document.documentElement.toggleAttribute("data-paper", isPaper);
    repaint();
  });
