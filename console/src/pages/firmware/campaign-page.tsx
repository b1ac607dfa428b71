import { Alert, Button, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useState, type ReactNode } from 'react';
import { Link, useLocation, useParams } from 'wouter';
import { useChange, type Schemas } from '../../api/client';
import { send, useList, useObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { openStream } from '../../api/stream';
import { formatDuration, formatNumber } from '../../format';
import { Confirm } from '../../ui/confirm';
import { DataTable, pagesOf, type Column } from '../../ui/data-table';
import { Facts, Page, Panel } from '../../ui/page';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall, type Call } from '../../ui/show-call';
import { StateBadge, type Health } from '../../ui/state-badge';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import {
  actionIcons,
  ActionName,
  actionsOf,
  CampaignProgress,
  campaignsPath,
  CampaignStateBadge,
  devicesOf,
  type Campaign,
  type CampaignAction,
} from './campaign';
import { campaignPath } from './campaigns';

const refreshMs = 5_000;

/** A campaign while it runs: its state arrives as the node reports it. */
export default function CampaignPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const client = useQueryClient();
  const { id = '' } = useParams<{ id: string }>();
  const campaign = useObject<Campaign>(campaignsPath, id);
  const exists = campaign.data !== undefined;
  useEffect(() => {
    if (!exists) return;
    return openStream({
      path: `${campaignPath(id)}/events`,
      onReopen: () => void client.invalidateQueries({ queryKey: [campaignsPath, 'one', id] }),
      onEvent: ({ type, data }) => {
        const changed = (data as { campaign?: Campaign }).campaign;
        if (type !== 'campaign' || !changed) return;
        client.setQueryData<Campaign>([campaignsPath, 'one', id], (known) => ({
          ...changed,
          // Another node than that of the campaign streams it without them.
          devices: changed.devices.length ? changed.devices : (known?.devices ?? []),
        }));
      },
    });
  }, [client, exists, id]);
  if (!campaign.data) {
    return (
      <PendingPage
        title={t`Campaign ${id}`}
        query={campaign}
        missing={<EmptyState title={<Trans>There is no campaign with this number</Trans>} />}
      />
    );
  }
  const data = campaign.data;
  return (
    <Page
      title={t`Campaign ${id}`}
      aside={<CampaignStateBadge status={data.status} />}
      description={data.description}
      actions={
        <>
          <ShowCall method="GET" path={campaignPath(id)} ctl={`campaigns show ${id}`} />
          {mayInNamespace(caller, 'operator', data.namespace) &&
            actionsOf(data).map((action) => <Action key={action} action={action} campaign={data} />)}
        </>
      }
    >
      {data.reason && (
        <Alert color="red" variant="light" title={<Trans>The campaign has halted</Trans>}>
          {data.reason}
        </Alert>
      )}
      <Counts campaign={data} />
      <div className="grid">
        <Waves campaign={data} />
        <Definition campaign={data} />
      </div>
      <Devices id={id} />
    </Page>
  );
}

function Counts({ campaign }: { campaign: Campaign }) {
  const { t } = useLingui();
  const { counts } = campaign;
  const tiles: [string, number][] = [
    [t`Devices`, devicesOf(campaign)],
    [t`Waiting`, counts.waiting],
    [t`Installing`, counts.started],
    [t`Succeeded`, counts.succeeded],
    [t`Failed`, counts.failed],
    ...(counts.cancelled > 0 ? ([[t`Cancelled`, counts.cancelled]] as [string, number][]) : []),
  ];
  return (
    <>
      <div className="tiles" aria-live="polite">
        {tiles.map(([label, count]) => (
          <div key={label} className="tile">
            <div className="tile-label">{label}</div>
            <div className="tile-value">{formatNumber(count)}</div>
          </div>
        ))}
      </div>
      <CampaignProgress campaign={campaign} />
    </>
  );
}

function Waves({ campaign: { waves = [], wave, status } }: { campaign: Campaign }) {
  const names: ReactNode[] = [
    ...waves.map(({ percent, group }) =>
      group != null ? (
        <Trans>
          group{' '}
          <Link href={`/groups/${encodeURIComponent(group)}`} className="link">
            {group}
          </Link>
        </Trans>
      ) : (
        <Trans>{formatNumber(percent ?? 0)} % of the devices</Trans>
      ),
    ),
    waves.length === 0 ? <Trans>all devices</Trans> : <Trans>all other devices</Trans>,
  ];
  const isCompleted = status === 'completed';
  const stateOf = (index: number): [Health, ReactNode] => {
    if (isCompleted || (wave !== null && index < wave)) return ['good', <Trans>ended</Trans>];
    if (index === wave && status !== 'cancelled') {
      return status === 'running' ? ['good', <Trans>running</Trans>] : ['warning', <Trans>stopped</Trans>];
    }
    return ['unknown', status === 'cancelled' ? <Trans>cancelled</Trans> : <Trans>waiting</Trans>];
  };
  return (
    <Panel title={<Trans>Waves</Trans>}>
      <ol className="plain-list attention">
        {names.map((name, index) => {
          const [health, state] = stateOf(index);
          return (
            <li key={index}>
              <StateBadge health={health}>{state}</StateBadge>
              <span>
                {index + 1}. {name}
              </span>
            </li>
          );
        })}
      </ol>
    </Panel>
  );
}

function Definition({ campaign }: { campaign: Campaign }) {
  const { window: hours, group, devices = [], max_devices_per_minute: perMinute = 0 } = campaign;
  return (
    <Panel title={<Trans>Definition</Trans>}>
      <Facts
        rows={[
          [
            <Trans>Package</Trans>,
            <Link href={`/firmware?edit=${encodeURIComponent(campaign.package)}`} className="link">
              {campaign.package}
            </Link>,
          ],
          [
            <Trans>Devices</Trans>,
            group ? (
              <Link href={`/groups/${encodeURIComponent(group)}`} className="link">
                <Trans>group {group}</Trans>
              </Link>
            ) : devices.length > 0 ? (
              <Trans>{devices.length} chosen ones</Trans>
            ) : (
              <Trans>all of the product</Trans>
            ),
          ],
          [
            <Trans>Rate</Trans>,
            perMinute === 0 ? (
              <Trans>no limit</Trans>
            ) : (
              <Trans>at most {formatNumber(perMinute)} devices per minute</Trans>
            ),
          ],
          [
            <Trans>Time of day</Trans>,
            hours ? (
              <Trans>
                {hours.from} to {hours.to} UTC
              </Trans>
            ) : (
              <Trans>any</Trans>
            ),
          ],
          [
            <Trans>Halts</Trans>,
            <Trans>
              below {campaign.min_success_percent} % of success, from {campaign.min_ended} results on
            </Trans>,
          ],
          [
            <Trans>Attempts</Trans>,
            <Trans>
              {campaign.max_attempts}, each for {formatDuration(campaign.timeout_s ?? 0)}
            </Trans>,
          ],
          [<Trans>Namespace</Trans>, campaign.namespace],
          ...(campaign.node ? [[<Trans>Node</Trans>, campaign.node] as [ReactNode, ReactNode]] : []),
          [<Trans>Begun</Trans>, <Ago ms={campaign.created_at_ms} />],
          [<Trans>State changed</Trans>, <Ago ms={campaign.changed_at_ms} />],
        ]}
      />
    </Panel>
  );
}

const deviceHealth: Record<Schemas['CampaignDeviceState'], Health> = {
  waiting: 'unknown',
  started: 'unknown',
  succeeded: 'good',
  failed: 'critical',
  cancelled: 'warning',
};

function Devices({ id }: { id: string }) {
  const { t } = useLingui();
  const list = useList<Schemas['CampaignDeviceRow']>(`${campaignPath(id)}/devices`, {}, { every: refreshMs });
  const columns: Column<Schemas['CampaignDeviceRow']>[] = [
    {
      id: 'device',
      header: t`Device`,
      sort: (row) => row.device,
      cell: (row) => (
        <Link href={`/devices/${encodeURIComponent(row.device)}`} className="link">
          {row.device}
        </Link>
      ),
    },
    { id: 'wave', header: t`Wave`, align: 'right', sort: (row) => row.wave, cell: (row) => row.wave + 1 },
    {
      id: 'state',
      header: t`State`,
      sort: (row) => row.state,
      cell: (row) => (
        <StateBadge health={deviceHealth[row.state]}>
          <DeviceStateName state={row.state} />
        </StateBadge>
      ),
    },
    {
      id: 'attempts',
      header: t`Attempts`,
      align: 'right',
      sort: (row) => row.attempts,
      cell: (row) => row.attempts,
    },
    {
      id: 'changed',
      header: t`Changed`,
      sort: (row) => row.changed_at_ms,
      cell: (row) => <Ago ms={row.changed_at_ms} />,
    },
    { id: 'error', header: t`Error`, cell: (row) => row.error ?? '–' },
  ];
  return (
    <DataTable
      name="campaign-devices"
      label={t`Devices`}
      columns={columns}
      rowKey={(row) => row.device}
      rowHref={(row) => `/devices/${encodeURIComponent(row.device)}`}
      {...pagesOf(list)}
      height={520}
      empty={<EmptyState title={<Trans>The campaign has no devices</Trans>} />}
    />
  );
}

function DeviceStateName({ state }: { state: Schemas['CampaignDeviceState'] }) {
  switch (state) {
    case 'waiting':
      return <Trans>waiting</Trans>;
    case 'started':
      return <Trans>installing</Trans>;
    case 'succeeded':
      return <Trans>succeeded</Trans>;
    case 'failed':
      return <Trans>failed</Trans>;
    default:
      return <Trans>cancelled</Trans>;
  }
}

/** A button; what cannot be undone is confirmed first. */
function Action({ action, campaign }: { action: CampaignAction; campaign: Campaign }) {
  const [, navigate] = useLocation();
  const [isAsking, setAsking] = useState(false);
  const id = String(campaign.id);
  const isDeletion = action === 'delete';
  const call: Call = {
    method: isDeletion ? 'DELETE' : 'POST',
    path: isDeletion ? campaignPath(id) : `${campaignPath(id)}/${action}`,
    ctl: `campaigns ${action} ${id}`,
  };
  const run = useChange(() => send(call.method, call.path), [[campaignsPath]]);
  const start = () =>
    run.mutate(undefined, {
      onSuccess: () => {
        setAsking(false);
        if (isDeletion) navigate('/firmware?tab=campaigns');
      },
    });
  const Icon = actionIcons[action];
  const isFinal = action === 'cancel' || isDeletion;
  return (
    <>
      <Button
        variant="default"
        leftSection={<Icon size={14} />}
        loading={run.isPending}
        onClick={isFinal ? () => setAsking(true) : start}
      >
        <ActionName action={action} />
      </Button>
      {isAsking && (
        <Confirm
          title={isDeletion ? <Trans>Delete campaign {id}?</Trans> : <Trans>Cancel campaign {id}?</Trans>}
          action={<ActionName action={action} />}
          call={call}
          isPending={run.isPending}
          error={run.error}
          onClose={() => setAsking(false)}
          onConfirm={start}
        >
          <Text size="sm">
            {isDeletion ? (
              <Trans>Its devices install what is assigned to them, which may be another version.</Trans>
            ) : (
              <Trans>
                Devices without a result install what is assigned to them; others keep the package. A cancelled campaign
                cannot be resumed.
              </Trans>
            )}
          </Text>
        </Confirm>
      )}
    </>
  );
}
