// SPDX-FileCopyrightText: 2026 The cfl_flare authors
// SPDX-License-Identifier: Apache-2.0
"use strict";
// Draws every plot from the JSON next to it. Expressions are interpreted, not compiled: the page allows no eval.
const config = JSON.parse(document.getElementById("config").textContent);
const narrow = matchMedia("(max-width: 600px)").matches;
config.legend.columns = narrow ? 2 : 6;
const options = {
  mode: "vega-lite", actions: false, ast: true, renderer: "svg", defaultStyle: false, config,
  tooltip: { disableDefaultStyle: true },
};
function draw(figure) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const place = figure.querySelector(".plot");
  return vegaEmbed(place, spec, options).then(() => {
    place.querySelector("svg").setAttribute("aria-label", figure.dataset.name);
    figure.dataset.drawn = "yes";
  }).catch((error) => {
    place.textContent = "This plot cannot be drawn here; its numbers are in the table below.";
    console.error(error);
  });
}
window.drawn = Promise.all(Array.from(document.querySelectorAll("figure"), draw));
// On paper, small tables are open.
let closed = [];
addEventListener("beforeprint", () => {
  closed = Array.from(document.querySelectorAll("details.small:not([open])"));
  for (const table of closed) table.open = true;
});
addEventListener("afterprint", () => { for (const table of closed) table.open = false; });
