/** What the page for registration and the links to it have in common. */

export const registerPath = '/register';
export const minPasswordLength = 8;

/** Whether the node lets people register; it writes this into the page. */
export const isRegistrationOpen = () =>
  document.querySelector<HTMLMetaElement>('meta[name="registration"]')?.content === 'on';

/** A link that fills in the code. It is in the fragment, which browsers do not send and proxies do not log. */
export const registerLink = (code: string, origin = location.origin) =>
  `${origin}${registerPath}#${encodeURIComponent(code)}`;

/** The code in the fragment of such a link. */
export function codeOf(fragment: string): string {
  try {
    return decodeURIComponent(fragment.replace(/^#/, ''));
  } catch {
    return '';
  }
}

/** As the node checks it. */
export const isUsername = (text: string) => /^[A-Za-z0-9_]{3,30}$/.test(text);

export const isGoodPassword = (text: string) =>
  [...text].length >= minPasswordLength && /\p{Lu}/u.test(text) && /\p{Ll}/u.test(text) && /[0-9]/.test(text);
