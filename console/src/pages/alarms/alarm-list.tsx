import { Button, MultiSelect, SegmentedControl, Text, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconCheck, IconSearch } from '@tabler/icons-react';
import { useEffect, useState } from 'react';
import { Link, useLocation, useSearchParams } from 'wouter';
import { queryClient, useChange, useRead, type Schemas } from '../../api/client';
import { send, useList } from '../../api/objects';
import { useCaller } from '../../api/session';
import { openStream } from '../../api/stream';
import { formatNumber, formatTime } from '../../format';
import { Confirm } from '../../ui/confirm';
import { DataTable, pagesOf, useNodeOrder, type Column, type NodeOrder } from '../../ui/data-table';
import { EmptyState } from '../../ui/states';
import { Ago } from '../../ui/time';
import { useUrlState } from '../../ui/url-state';
import { mayChangeAlarm, nodeProduct } from './alarm-access';
import { AlarmDrawer } from './alarm-drawer';
import { AlarmStateName, SeverityBadge, severities, useSeverityOptions } from './severity';

export type Alarm = Schemas['Alarm'];

export const alarmsPath = '/api/v1/alarms';

const refreshMs = 30_000;
/** Changes that arrive together cause one reading. */
const settleMs = 400;
const parallel = 6;
const states = {
  active: 'ACTIVE_UNACK,ACTIVE_ACK',
  unacknowledged: 'ACTIVE_UNACK,CLEARED_UNACK',
  all: '',
} as const;

/** Reads the alarms again when the node reports changes of them. */
export function useAlarmChanges(query: string, onChange: () => void): void {
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const close = openStream({
      path: `/api/v1/alarm-events${query}`,
      onReopen: onChange,
      onEvent: () => {
        timer ??= setTimeout(() => {
          timer = undefined;
          onChange();
        }, settleMs);
      },
    });
    return () => {
      close();
      clearTimeout(timer);
    };
  }, [query, onChange]);
}

const readAgain = () => {
  void queryClient.invalidateQueries({ queryKey: [alarmsPath] });
  void queryClient.invalidateQueries({ queryKey: ['alarm-counts'] });
};

const nodeOrder: NodeOrder = {
  type: 'type',
  severity: 'severity',
  device: 'deviceId',
  state: 'state',
  raised: 'raised_at_ms',
  product: 'productId',
};

const isUnacknowledged = (alarm: Alarm) => alarm.state.endsWith('_UNACK');
export const isCleared = (alarm: Alarm) => alarm.state.startsWith('CLEARED');

interface AlarmListProps {
  /** Only alarms of this device. */
  device?: string;
  /** Only alarms of devices of this product whose ids begin with a text. */
  product?: { id: string; devicePrefix: string };
}

/** Alarms of the node, or of some devices; active ones first. */
export function AlarmList({ device, product }: AlarmListProps) {
  const { t } = useLingui();
  const caller = useCaller();
  const [location] = useLocation();
  const [parameters] = useSearchParams();
  const [shown, setShown] = useUrlState('show', 'active');
  const [severity, setSeverity] = useUrlState('severity');
  const [typedDevice, setTypedDevice] = useUrlState('device');
  const [type, setType] = useUrlState('type');
  const [opened, setOpened] = useUrlState('alarm');
  const [deviceText] = useDebouncedValue(typedDevice.trim(), 300);
  const [typeText] = useDebouncedValue(type.trim(), 300);
  const [isAsking, setAsking] = useState(false);
  const state = states[shown as keyof typeof states] ?? states.active;
  const severityOptions = useSeverityOptions();
  const sort = useNodeOrder(nodeOrder);
  const list = useList<Alarm>(
    alarmsPath,
    { state, severity, device: device ?? deviceText, product: product?.id, type: typeText, sort },
    { every: refreshMs, pageSize: 200 },
  );
  useAlarmChanges(device ? `?device=${encodeURIComponent(device)}` : '', readAgain);
  const href = (alarm: Alarm) => {
    const next = new URLSearchParams(parameters);
    next.set('alarm', String(alarm.id));
    return `${location}?${next.toString()}`;
  };
  const acknowledge = useAcknowledge();
  const rows = product ? list.rows?.filter(({ deviceId }) => deviceId.startsWith(product.devicePrefix)) : list.rows;
  const waiting = (rows ?? []).filter((alarm) => isUnacknowledged(alarm) && mayChangeAlarm(caller, alarm));
  const columns: Column<Alarm>[] = [
    {
      id: 'type',
      header: t`Alarm`,
      sort: (alarm) => alarm.type,
      cell: (alarm) => (
        <Link href={href(alarm)} className="link">
          {alarm.type}
        </Link>
      ),
    },
    {
      id: 'severity',
      header: t`Severity`,
      sort: (alarm) => severities.indexOf(alarm.severity),
      cell: (alarm) => <SeverityBadge severity={alarm.severity} isCleared={isCleared(alarm)} />,
    },
    {
      id: 'device',
      header: t`Device`,
      sort: (alarm) => alarm.deviceId,
      cell: (alarm) => <AlarmSubject alarm={alarm} />,
    },
    {
      id: 'details',
      header: t`Details`,
      cell: (alarm) =>
        alarm.details ? (
          <div className="ellipsis alarm-details" title={alarm.details}>
            {alarm.details}
          </div>
        ) : (
          <span className="dimmed">–</span>
        ),
    },
    {
      id: 'state',
      header: t`State`,
      sort: (alarm) => alarm.state,
      cell: (alarm) => <AlarmStateName state={alarm.state} />,
    },
    {
      id: 'raised',
      header: t`Raised`,
      sort: (alarm) => alarm.raised_at_ms,
      cell: (alarm) => <Ago ms={alarm.raised_at_ms} />,
    },
    { id: 'product', header: t`Product`, cell: (alarm) => alarm.productId, isHidden: true },
    { id: 'id', header: t`Number`, align: 'right', cell: (alarm) => alarm.id, isHidden: true },
    {
      id: 'action',
      header: t`Action`,
      cell: (alarm) =>
        isUnacknowledged(alarm) && mayChangeAlarm(caller, alarm) ? (
          <Button
            size="compact-xs"
            variant="default"
            leftSection={<IconCheck size={12} />}
            loading={acknowledge.isPending && acknowledge.variables?.includes(alarm)}
            onClick={() => acknowledge.mutate([alarm])}
          >
            <Trans>Acknowledge</Trans>
          </Button>
        ) : alarm.acknowledged_by ? (
          <span className="dimmed">
            <Trans>by {alarm.acknowledged_by}</Trans>
          </span>
        ) : (
          <span className="dimmed">–</span>
        ),
    },
  ];
  const visible = device ? columns.filter((column) => column.id !== 'device') : columns;
  const isFiltered = Boolean(severity || deviceText || typeText);
  return (
    <>
      <DataTable
        name="alarms"
        label={t`Alarms`}
        columns={visible}
        nodeOrder={nodeOrder}
        rowKey={(alarm) => String(alarm.id)}
        rowHref={href}
        {...pagesOf(list)}
        rows={rows}
        toolbar={
          <>
            <SegmentedControl
              size="xs"
              aria-label={t`Alarms to show`}
              value={shown}
              onChange={setShown}
              data={[
                { value: 'active', label: t`Active` },
                { value: 'unacknowledged', label: t`Not acknowledged` },
                { value: 'all', label: t`All, with history` },
              ]}
            />
            <MultiSelect
              aria-label={t`Severity`}
              placeholder={severity ? undefined : t`Any severity`}
              clearable
              w={190}
              value={severity ? severity.split(',') : []}
              onChange={(values) => setSeverity(values.join(','))}
              data={severityOptions}
            />
            {device === undefined && (
              <TextInput
                aria-label={t`Device id`}
                placeholder={t`Device id`}
                leftSection={<IconSearch size={14} />}
                w={160}
                value={typedDevice}
                onChange={(event) => setTypedDevice(event.currentTarget.value)}
              />
            )}
            <TextInput
              aria-label={t`Alarm type`}
              placeholder={t`Alarm type`}
              w={150}
              value={type}
              onChange={(event) => setType(event.currentTarget.value)}
            />
            {waiting.length > 1 && (
              <Button variant="default" leftSection={<IconCheck size={14} />} onClick={() => setAsking(true)}>
                <Trans>Acknowledge {formatNumber(waiting.length)}</Trans>
              </Button>
            )}
          </>
        }
        empty={
          isFiltered || shown === 'all' ? (
            <EmptyState title={isFiltered ? <Trans>No alarm matches</Trans> : <Trans>No alarms yet</Trans>}>
              {isFiltered ? (
                <Trans>Change the search or the filters.</Trans>
              ) : (
                <Trans>Alarm rules of products raise alarms, and so do rules with the action alarm.</Trans>
              )}
            </EmptyState>
          ) : (
            <EmptyState
              title={<Trans>No active alarms</Trans>}
              actions={
                <Button variant="default" onClick={() => setShown('all')}>
                  <Trans>Show the history</Trans>
                </Button>
              }
            >
              <Trans>Everything is in order. New alarms appear here at once.</Trans>
            </EmptyState>
          )
        }
      />
      {opened && <AlarmDrawer id={opened} onClose={() => setOpened('')} />}
      {isAsking && (
        <Confirm
          isSafe
          title={<Trans>Acknowledge {formatNumber(waiting.length)} alarms?</Trans>}
          action={<Trans>Acknowledge</Trans>}
          call={{ method: 'POST', path: `${alarmsPath}/ID/acknowledge`, ctl: 'alarms ack ID' }}
          isPending={acknowledge.isPending}
          error={acknowledge.error}
          onClose={() => setAsking(false)}
          onConfirm={() =>
            acknowledge.mutate(waiting, {
              onSuccess: (count) => {
                setAsking(false);
                notifications.show({ message: t`${formatNumber(count)} alarms are acknowledged.` });
              },
            })
          }
        >
          <Text size="sm">
            <Trans>
              All alarms in the list that nobody has acknowledged yet, the oldest from{' '}
              {formatTime(Math.min(...waiting.map((alarm) => alarm.raised_at_ms)))}.
            </Trans>
          </Text>
        </Confirm>
      )}
    </>
  );
}

/** The device of an alarm, or the node. */
export function AlarmSubject({ alarm }: { alarm: Alarm }) {
  if (alarm.productId === nodeProduct) {
    return (
      <span className="dimmed">
        <Trans>this node</Trans>
      </span>
    );
  }
  return (
    <Link href={`/devices/${encodeURIComponent(alarm.deviceId)}`} className="link">
      {alarm.deviceId}
    </Link>
  );
}

/** Acknowledges alarms, some at a time; the result is their number. */
function useAcknowledge() {
  return useChange<Alarm[], number>(
    async (alarms) => {
      const rest = [...alarms];
      const work = async () => {
        for (let alarm = rest.pop(); alarm; alarm = rest.pop()) {
          await send('POST', `${alarmsPath}/${alarm.id}/acknowledge`);
        }
      };
      await Promise.all(Array.from({ length: Math.min(parallel, alarms.length) }, work));
      return alarms.length;
    },
    [[alarmsPath], ['alarm-counts']],
  );
}

export function useAlarmCounts() {
  const caller = useCaller();
  return useRead(
    ['alarm-counts'],
    (signal) => send<Schemas['AlarmCounts']>('GET', '/api/v1/alarm-counts', { signal }),
    { every: refreshMs, enabled: caller.role !== null },
  );
}
