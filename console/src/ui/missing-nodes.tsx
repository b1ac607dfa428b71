import { Trans } from '@lingui/react/macro';
import { StateBadge } from './state-badge';

/** Names the nodes of a cluster that did not answer, whose rows or values are missing. */
export function MissingNodes({ nodes }: { nodes: readonly string[] | undefined }) {
  const names = [...new Set(nodes)].join(', ');
  if (names === '') return null;
  return (
    <StateBadge health="warning">
      <Trans>No answer of {names}</Trans>
    </StateBadge>
  );
}
