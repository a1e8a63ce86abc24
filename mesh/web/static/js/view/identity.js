// @ts-check
// Who the person is: an access token and a name. Both are kept in the memory of the page only.
import { Component, html } from "../html.js";

/** @import { Api } from "../api.js" */

/** @typedef {{api: Api, identify: (token: string, user: string) => void, close: () => void}} Props */

const PLAIN = /^[\x20-\x7e]*$/;

/** @extends {Component<Props, {token: string, user: string}>} */
export class Identity extends Component {
  state = { token: this.props.api.token, user: this.props.api.user };
  #dialog = /** @type {HTMLDialogElement} */ (/** @type {unknown} */ (null)); // set as it is drawn

  componentDidMount() {
    this.#dialog.showModal();
  }

  #problem() {
    const { token, user } = this.state;
    if (!PLAIN.test(token)) return "A token has plain characters only.";
    return PLAIN.test(user) ? "" : "The name can have the letters A to Z, digits and signs only.";
  }

  #save = () => {
    if (this.#problem()) return;
    this.props.identify(this.state.token.trim(), this.state.user.trim());
    this.#dialog.close();
  };

  /** @type {(key: "token" | "user", label: string, type: string, hint: string) => unknown} */
  #field(key, label, type, hint) {
    const input = (/** @type {{target: HTMLInputElement}} */ event) => this.setState({ [key]: event.target.value });
    const enter = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && !event.isComposing && this.#save();
    return html`
      <label><span>${label}</span>
        <input type=${type} autocomplete="off" spellcheck="false" maxlength="8000" value=${this.state[key]} onInput=${input} onKeyDown=${enter} />
        <small>${hint}</small>
      </label>
    `;
  }

  render() {
    const { close } = this.props;
    return html`
      <dialog class="identity" aria-labelledby="identity-title" onClose=${close} ref=${(/** @type {HTMLDialogElement} */ element) => (this.#dialog = element)}>
        <h2 id="identity-title">Who is asking</h2>
        ${this.#field("token", "Access token", "password", "Sent to the mesh as Authorization: Bearer. It stays in this page's memory only: a reload forgets it.")}
        ${this.#field("user", "Your name", "text", "Recorded with what you approve.")}
        <p class="problem" role="status">${this.#problem()}</p>
        <div class="answers">
          <button class="primary" onClick=${this.#save}>Use</button>
          <button onClick=${() => this.#dialog.close()}>Cancel</button>
        </div>
      </dialog>
    `;
  }
}
