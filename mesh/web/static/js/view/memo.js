// @ts-check
// A part of the page that is drawn again only if what it is drawn from is another thing.
import { Component, html } from "../html.js";

/** @typedef {{by: unknown[], draw: () => unknown}} Props `by` is what it is drawn from, always as many things */

/** @extends {Component<Props>} */
export class Memo extends Component {
  /** @param {Props} next */
  shouldComponentUpdate(next) {
    return next.by.some((one, index) => one !== this.props.by[index]);
  }

  render() {
    return html`${this.props.draw()}`;
  }
}
