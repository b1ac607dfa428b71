import { Progress, Stack } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import type { ReactNode } from 'react';
import type { Schemas } from '../../api/client';
import { formatBytes, formatNumber } from '../../format';
import { StateBadge } from '../../ui/state-badge';
import { CopiesPanel } from './copies-panel';

type Standby = Schemas['ClusterStandby'];
type SessionCopy = Schemas['ClusterSessionCopy'];

/** The copy of the sessions of this node at another one, and the copies that it keeps for others. */
export function DurableSessions({ standby }: { standby: Standby }) {
  return (
    <CopiesPanel
      title={<Trans>Durable sessions</Trans>}
      facts={[
        [<Trans context="noun">Copy</Trans>, <StandbyState standby={standby} />],
        [<Trans>On the way</Trans>, formatBytes(standby.unconfirmed_bytes)],
        [<Trans>Sent since the start</Trans>, formatBytes(standby.sent_bytes)],
        [<Trans>Sessions adopted since the start</Trans>, formatNumber(standby.adopted_sessions)],
      ]}
      hint={standbyHint(standby)}
      lastError={standby.state === 'current' ? null : standby.last_error}
      keptTitle={<Trans>Sessions kept for other nodes</Trans>}
      kept={standby.copies.map((copy) => [copy.node, <KeptCopy copy={copy} />])}
      nothingKept={<Trans>No other node copies its sessions to this one.</Trans>}
    />
  );
}

function StandbyState({ standby: { state, node } }: { standby: Standby }) {
  const other = node ?? '–';
  switch (state) {
    case 'current':
      return (
        <StateBadge health="good">
          <Trans>current at {other}</Trans>
        </StateBadge>
      );
    case 'copying':
      return (
        <StateBadge health="warning">
          <Trans>copying to {other}</Trans>
        </StateBadge>
      );
    case 'no_standby':
      return (
        <StateBadge health="warning">
          <Trans>none</Trans>
        </StateBadge>
      );
    case 'adopted':
      return (
        <StateBadge health="warning">
          <Trans>adopted by {other}</Trans>
        </StateBadge>
      );
    case 'removing_standby':
    case 'examining':
      return (
        <StateBadge health="critical">
          <Trans>acknowledgements wait</Trans>
        </StateBadge>
      );
  }
}

/** What the state of the copy means for clients. */
function standbyHint({ state, last_error }: Standby): ReactNode {
  switch (state) {
    case 'current':
      return null;
    case 'copying':
      return <Trans>Until the copy is complete, no node adopts the sessions if this one fails.</Trans>;
    case 'no_standby':
      return (
        <>
          <Trans>No node adopts the sessions if this one fails: their clients wait for its return.</Trans>
          {/* After an error, the next copy begins soon. */}
          {last_error === null && (
            <>
              {' '}
              <Trans>There is no other node that could keep a copy, or cluster.standby is off.</Trans>
            </>
          )}
        </>
      );
    case 'removing_standby':
      return <Trans>The node with the copy was lost. Clients get acknowledgements once the cluster knows that.</Trans>;
    case 'examining':
      return (
        <Trans>
          This node does not know yet whether another one has adopted its sessions. Clients get acknowledgements once it
          does.
        </Trans>
      );
    case 'adopted':
      return <Trans>This node ends its sessions, because another one has them now.</Trans>;
  }
}

/** The copy of the sessions of another node. */
function KeptCopy({ copy: { node, is_standby, adoption, received_bytes } }: { copy: SessionCopy }) {
  const received = formatBytes(received_bytes);
  return (
    <Stack gap={0}>
      <KeptCopyState isStandby={is_standby} isAdopted={adoption !== null} />
      <span className="dimmed">
        <Trans>{received} received</Trans>
      </span>
      {adoption && <AdoptionProgress node={node} adoption={adoption} />}
    </Stack>
  );
}

function KeptCopyState({ isStandby, isAdopted }: { isStandby: boolean; isAdopted: boolean }) {
  if (isAdopted) {
    return (
      <StateBadge health="warning">
        <Trans>being adopted</Trans>
      </StateBadge>
    );
  }
  return isStandby ? (
    <StateBadge health="good">
      <Trans>adopted if it fails</Trans>
    </StateBadge>
  ) : (
    <StateBadge health="unknown">
      <Trans>not adopted if it fails</Trans>
    </StateBadge>
  );
}

function AdoptionProgress({ node, adoption }: { node: string; adoption: Schemas['ClusterAdoption'] }) {
  const { t } = useLingui();
  const { processed_sessions: processed, sessions } = adoption;
  return (
    <span className="row">
      <Progress.Root className="grow" miw={60}>
        <Progress.Section
          value={sessions > 0 ? (processed / sessions) * 100 : 0}
          color="tide"
          aria-label={t`Sessions of ${node} that are adopted`}
        />
      </Progress.Root>
      <span aria-live="polite">
        {sessions > 0 ? (
          <Trans>
            {formatNumber(processed)} of {formatNumber(sessions)}
          </Trans>
        ) : (
          <Trans>counting sessions</Trans>
        )}
      </span>
    </span>
  );
}
