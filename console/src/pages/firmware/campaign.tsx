import { Progress } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconBan, IconPlayerPause, IconPlayerPlay, IconTrash, type Icon } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import type { Schemas } from '../../api/client';
import { StateBadge, type Health } from '../../ui/state-badge';

export type Campaign = Schemas['CampaignInfo'];

export const campaignsPath = '/api/v1/firmware-campaigns';

const health: Record<Campaign['status'], Health> = {
  running: 'good',
  paused: 'warning',
  halted: 'critical',
  completed: 'good',
  cancelled: 'unknown',
};

export function CampaignStateBadge({ status }: { status: Campaign['status'] }) {
  return (
    <StateBadge health={health[status]}>
      <StatusName status={status} />
    </StateBadge>
  );
}

function StatusName({ status }: { status: Campaign['status'] }) {
  switch (status) {
    case 'running':
      return <Trans>running</Trans>;
    case 'paused':
      return <Trans>paused</Trans>;
    case 'halted':
      return <Trans>halted</Trans>;
    case 'completed':
      return <Trans>completed</Trans>;
    default:
      return <Trans>cancelled</Trans>;
  }
}

export const devicesOf = ({ counts }: Campaign) =>
  counts.waiting + counts.started + counts.succeeded + counts.failed + counts.cancelled;

/** Shares of the devices: succeeded, failed, installing. */
export function CampaignProgress({ campaign }: { campaign: Campaign }) {
  const { t } = useLingui();
  const percent = (count: number) => (count / Math.max(devicesOf(campaign), 1)) * 100;
  const { counts } = campaign;
  return (
    <Progress.Root miw={80}>
      <Progress.Section value={percent(counts.succeeded)} aria-label={t`Succeeded`} color="tide" />
      <Progress.Section value={percent(counts.failed)} aria-label={t`Failed`} color="red.7" />
      <Progress.Section value={percent(counts.started)} aria-label={t`Installing`} color="gray" striped />
    </Progress.Root>
  );
}

export type CampaignAction = 'pause' | 'resume' | 'cancel' | 'delete';

/** What can be done with a campaign in this state. */
export function actionsOf({ status }: Campaign): CampaignAction[] {
  switch (status) {
    case 'running':
      return ['pause', 'cancel'];
    case 'paused':
    case 'halted':
      return ['resume', 'cancel'];
    default:
      return ['delete'];
  }
}

export const actionIcons: Record<CampaignAction, Icon> = {
  pause: IconPlayerPause,
  resume: IconPlayerPlay,
  cancel: IconBan,
  delete: IconTrash,
};

export function ActionName({ action }: { action: CampaignAction }): ReactNode {
  switch (action) {
    case 'pause':
      return <Trans>Pause</Trans>;
    case 'resume':
      return <Trans>Resume</Trans>;
    case 'cancel':
      return <Trans>Cancel the campaign</Trans>;
    default:
      return <Trans>Delete</Trans>;
  }
}
