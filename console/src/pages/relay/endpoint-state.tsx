import { Trans } from '@lingui/react/macro';
import { choiceName } from '../../api/choice-names';
import { StateBadge } from '../../ui/state-badge';
import type { EndpointStatus, RelayEndpoint } from './endpoint-address';

/** What receivers get; without a mode, messages in an object. */
export function ModeName({ mode }: { mode: RelayEndpoint['mode'] | undefined }) {
  return <>{choiceName('mode', mode ?? 'json')}</>;
}

/** Whether clients can connect. */
export function EndpointState({ endpoint, status }: { endpoint: RelayEndpoint; status: EndpointStatus | undefined }) {
  if (endpoint.disabled_reason) {
    return (
      <StateBadge health="warning">
        <Trans>disabled</Trans>
      </StateBadge>
    );
  }
  // Its namespace is disabled, or the owners of its namespace are banned.
  if (status?.is_enabled === false) {
    return (
      <StateBadge health="warning">
        <Trans>closed by the namespace</Trans>
      </StateBadge>
    );
  }
  return (
    <StateBadge health="good">
      <Trans>enabled</Trans>
    </StateBadge>
  );
}
