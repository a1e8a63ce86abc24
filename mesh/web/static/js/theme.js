// @ts-check
// Runs before anything is drawn, so that the page does not flash: sets the colours that a person chose here. Without
// a choice the style sheet follows the system.
const chosen = localStorage.getItem("theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
