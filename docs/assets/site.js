/* What scrolls can be reached by the keyboard. */
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap")) box.tabIndex = 0;
});
