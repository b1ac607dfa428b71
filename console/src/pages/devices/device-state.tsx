import { Trans } from '@lingui/react/macro';
import type { Schemas } from '../../api/client';
import { StateBadge } from '../../ui/state-badge';

export function DeviceStateBadge({ state }: { state: Schemas['DeviceState'] }) {
  switch (state) {
    case 'online':
      return (
        <StateBadge health="good">
          <Trans>online</Trans>
        </StateBadge>
      );
    case 'offline':
      return (
        <StateBadge health="warning">
          <Trans>offline</Trans>
        </StateBadge>
      );
    default:
      return (
        <StateBadge health="unknown">
          <Trans>never connected</Trans>
        </StateBadge>
      );
  }
}
