/** What replaces the credentials of a device. */

import type { Schemas } from '../../api/client';

type Summary = Schemas['CredentialSummary'];

/** Kinds of credentials that the node generates. */
export type GeneratedKind = 'token' | 'password' | 'secure';

/** A credential to generate; a user name or secure id stays the same. */
export function newCredential(kind: GeneratedKind, present: readonly Summary[]): Schemas['NewCredential'] {
  const name = present.find(({ type }) => type === kind)?.name;
  if (kind === 'password') return { type: kind, ...(name ? { username: name } : {}) };
  if (kind === 'secure') return { type: kind, ...(name ? { secure_id: name } : {}) };
  return { type: kind };
}

/** Certificates stay valid: their names are no secrets, and a new one would not be issued by the node. */
export const keptCredentials = (present: readonly Summary[]): Schemas['NewCredential'][] =>
  present.flatMap(({ type, name }) => (type === 'certificate' && name ? [{ type, common_name: name }] : []));

/** The number of credentials that cannot be written again, because the node does not show their keys. */
export const lostCredentials = (present: readonly Summary[]) => present.filter(({ type }) => type === 'jwt').length;
