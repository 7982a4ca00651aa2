// Unpacks what the page carries and gives every chart its script.

/** @type {Record<string, new (place: HTMLElement, table: any, store: Store) => unknown>} */
const CHARTS = { timeline: Timeline, scatter: Scatter, lines: Lines, matrix: Matrix };

(async () => {
  for (const table of document.querySelectorAll("table.data")) liven(/** @type {HTMLTableElement} */ (table));
  const [raw, arrays] = await Promise.all([unpacked("data"), unpacked("arrays")]);
  /** @type {Record<string, any>} */ const charts = JSON.parse(new TextDecoder().decode(raw));
  const store = new Store(arrays);
  /** @type {Record<string, unknown>} */ const made = {};
  for (const [id, table] of Object.entries(charts)) made[id] = new CHARTS[table.kind](byId(id), table, store);
  // Charts draw when they are told their size, which a browser does at the end of a frame.
  for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
  Object.assign(window, { semu: { ...made, readyMs: performance.now() } });
  document.body.dataset.ready = "yes";
})().catch((error) => {
  document.body.prepend(make("p", { role: "alert" }, `This page cannot be drawn here: ${error}. Its tables can be read.`));
});
