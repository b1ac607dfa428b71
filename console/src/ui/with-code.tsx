import type { ReactNode } from 'react';

/** A description of the node, with names in backquotes as code. */
export function withCode(text: string): ReactNode {
  const parts = text.replaceAll('\n', ' ').split('`');
  return parts.map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
