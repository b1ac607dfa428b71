import { Tooltip } from '@mantine/core';
import { Trans } from '@lingui/react/macro';
import { useRead } from './api/client';
import { StateBadge } from './ui/state-badge';

interface Readiness {
  ready: boolean;
  reason: string | null;
}

/** Whether the node answers and accepts traffic. */
export function NodeState() {
  const { data, error } = useRead(
    ['readiness'],
    async (signal): Promise<Readiness> => (await fetch('/readyz', { signal })).json(),
    { every: 5_000 },
  );
  if (error) {
    return (
      <StateBadge health="critical">
        <Trans>Not reachable</Trans>
      </StateBadge>
    );
  }
  if (!data) return null;
  if (!data.ready) {
    return (
      <Tooltip label={data.reason}>
        <span>
          <StateBadge health="warning">
            <Trans>Not ready</Trans>
          </StateBadge>
        </span>
      </Tooltip>
    );
  }
  return (
    <StateBadge health="good">
      <Trans>Ready</Trans>
    </StateBadge>
  );
}
