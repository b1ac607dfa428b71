/** Descriptions of the node, as people read them. */

import type { ReactNode } from 'react';
import { useDescriptions } from '../api/descriptions';

/** A text with names in backquotes as code. */
export function withCode(text: string): ReactNode {
  const parts = text.replaceAll('\n', ' ').split('`');
  return parts.map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}

/** A description in the language of the page; where it is cut off, pointing at it shows the whole text. */
export function Description({ text }: { text: string }) {
  const translated = useDescriptions()(text);
  return <span title={translated}>{withCode(translated)}</span>;
}
