// @ts-check
// Small line drawings, in the colour of the text around them.
import { html } from "../html.js";

/** @type {Record<string, string>} */
const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  pause: "M9 7v10M15 7v10",
  play: "M9 7l8 5-8 5Z",
  tree: "M12 8v4M12 12c0 4-6 2-6 6M12 12c0 4 6 2 6 6M12 8a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM6 22a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM18 22a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z",
  person: "M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4.500 20.500c1-3.500 4-5 7.500-5s6.500 1.500 7.500 5",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.500 1.500M17.500 17.500 19 19M19 5l-1.500 1.500M6.500 17.500 5 19",
  moon: "M20 14.500A8 8 0 0 1 9.500 4 8 8 0 1 0 20 14.500Z",
  chevron: "M9 6l6 6-6 6",
  check: "M5 12.500l4.500 4.500L19 7.500",
  cross: "M7 7l10 10M17 7L7 17",
  hand: "M12 8v5M12 16.500v.010M10.300 4.300 2.700 17.500A2 2 0 0 0 4.400 20.500h15.200a2 2 0 0 0 1.700-3L13.700 4.300a2 2 0 0 0-3.400 0Z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  down: "M12 5v14M6 13l6 6 6-6",
  agent: "M7 9h10a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H7a2 2 0 0 1-2-2v-6a2 2 0 0 1 2-2ZM12 9V5M9.500 13.500v1M14.500 13.500v1",
  speak: "M5 5h14v10H11l-4 4v-4H5Z",
  pen: "M5 19l1-4L16 5l3 3L9 18Z",
  timeline: "M4 6h8M8 12h10M6 18h6",
  tool: "M14.500 6.500a4 4 0 0 1 5-1l-2.500 2.500v2h2l2-2a4 4 0 0 1-5.500 5L8 20.500 4.500 17l7.500-7.500a4 4 0 0 1 2.500-3Z",
};

/** @param {{name: string}} props */
export const Icon = ({ name }) => html`
  <svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>
`;
