import { Button, Group, Input, NumberInput, SegmentedControl, Select, Stack, Switch, TextInput } from '@mantine/core';
import { notifications as toasts } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconSend } from '@tabler/icons-react';
import { choiceName, namedChoices } from '../../api/choice-names';
import { useChange, useRead, type Schemas } from '../../api/client';
import { objectPath, send, useList, type ConfigurationObject } from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import type { Column } from '../../ui/data-table';
import type { ObjectKind } from '../../ui/object-editor';
import { ObjectList } from '../../ui/object-list';
import type { InputProps } from '../../ui/field-inputs';
import { SeverityBadge, useSeverityOptions } from './severity';

type Notification = Schemas['Notification'];

const path = '/api/v1/notifications';

interface Target {
  sink?: string;
  mqtt?: { topic: string; qos?: number; retain?: boolean };
  endpoint?: string;
}

/** Where changes of alarms are sent. */
export function Notifications() {
  const { t } = useLingui();
  const caller = useCaller();
  const kind = useNotificationKind();
  const status = useRead(
    ['/api/v1/notification-status'],
    (signal) => send<{ data: Schemas['NotificationStatus'][] }>('GET', '/api/v1/notification-status', { signal }),
    { every: 5_000, enabled: caller.role !== null },
  );
  const counters = new Map(status.data?.data.map((each) => [each.name, each]));
  const columns: Column<Notification>[] = [
    { id: 'to', header: t`Sent to`, cell: (row) => <TargetName target={row.to as Target} /> },
    {
      id: 'severities',
      header: t`Severities`,
      cell: (row) =>
        row.severities?.length ? (
          <span className="row">
            {row.severities.map((severity) => (
              <SeverityBadge key={severity} severity={severity} />
            ))}
          </span>
        ) : (
          <Trans>all</Trans>
        ),
    },
    {
      id: 'on',
      header: t`Changes`,
      cell: (row) => row.on?.map((each) => choiceName('on', each)).join(', '),
      isHidden: true,
    },
    {
      id: 'enabled',
      header: t`Active`,
      cell: (row) => (row.enabled === false ? <Trans>no</Trans> : <Trans>yes</Trans>),
    },
    ...(caller.role === null
      ? []
      : [
          {
            id: 'sent',
            header: t`Sent`,
            align: 'right' as const,
            cell: (row: Notification) => formatNumber(counters.get(row.name)?.sent ?? 0),
          },
          {
            id: 'failed',
            header: t`Failed`,
            align: 'right' as const,
            cell: (row: Notification) => {
              const failed = counters.get(row.name)?.failed ?? 0;
              return failed > 0 ? <span className="state-critical">{formatNumber(failed)}</span> : '0';
            },
          },
        ]),
    { id: 'description', header: t`Description`, cell: (row) => row.description || '–' },
  ];
  return (
    <ObjectList<Notification>
      kind={kind}
      label={t`Notifications`}
      columns={columns}
      mayChange={mayInNamespace(caller, 'operator')}
      isNamespaced
      empty={{
        title: <Trans>No notifications yet</Trans>,
        text: <Trans>A notification sends changes of alarms by web hook, e-mail, MQTT or to a relay endpoint.</Trans>,
      }}
      editorActions={(object) => <TestButton object={object} />}
    />
  );
}

/** Changes of alarms that can be sent. */
const changes = ['raised', 'severity_changed', 'acknowledged', 'cleared', 'removed'] as const;

function TargetName({ target }: { target: Target }) {
  if (target.sink) return <Trans>sink {target.sink}</Trans>;
  if (target.endpoint) return <Trans>endpoint {target.endpoint}</Trans>;
  return <span className="mono">{target.mqtt?.topic}</span>;
}

function useNotificationKind(): ObjectKind {
  const { t } = useLingui();
  const severities = useSeverityOptions();
  return {
    path,
    command: 'notifications',
    idField: 'name',
    newSchema: 'NotificationNew',
    inputSchema: 'NotificationInput',
    newTitle: t`New notification`,
    initial: { name: '', to: { mqtt: { topic: 'alarms/${deviceId}' } } },
    deletion: (object) => (
      <Trans>This deletes the notification {String(object.name)}. Alarms are no longer sent by it.</Trans>
    ),
    fields: (isNew) => [
      ...(isNew ? [{ name: 'name', label: t`Name` }] : []),
      { name: 'to', label: t`Sent to`, render: (input) => <TargetInput {...input} /> },
      {
        name: 'all',
        label: t`All alarms`,
        help: t`Otherwise only those whose alarm rule names this notification.`,
      },
      {
        name: 'severities',
        label: t`Severities`,
        help: t`None chosen: all.`,
        options: severities,
      },
      {
        name: 'on',
        label: t`Changes`,
        help: t`Changes of alarms that are sent.`,
        options: namedChoices('on', changes),
      },
      { name: 'products', label: t`Products`, help: t`None: alarms of all products.` },
      { name: 'types', label: t`Alarm types`, help: t`None: all types.` },
      {
        name: 'text',
        label: t`Text`,
        help: t`With placeholders for fields of the alarm.`,
        control: 'textarea',
        placeholder: '${severity} ${type} of ${deviceId}: ${change} ${details}',
      },
      {
        name: 'min_interval_s',
        label: t`Minimum interval in seconds`,
        help: t`For the same change, alarm type and device; 0: no limit.`,
      },
      { name: 'description', label: t`Description`, help: '' },
      { name: 'enabled', label: t`Active`, help: '' },
    ],
  };
}

/** The channel: a sink, an MQTT topic or a relay endpoint. */
function TargetInput({ value, onChange, error, label, disabled }: InputProps) {
  const { t } = useLingui();
  const target = (value ?? {}) as Target;
  const channel = target.sink !== undefined ? 'sink' : target.endpoint !== undefined ? 'endpoint' : 'mqtt';
  const caller = useCaller();
  const sinks = useList<{ name: string }>('/api/v1/sinks', {}, { enabled: caller.role !== null });
  const endpoints = useList<{ id: string }>('/api/v1/endpoints');
  const mqtt = target.mqtt ?? { topic: '' };
  return (
    <Stack gap="xs">
      <Input.Label component="div">{label}</Input.Label>
      <SegmentedControl
        size="xs"
        aria-label={label}
        disabled={disabled}
        value={channel}
        onChange={(next) =>
          onChange(
            next === 'sink'
              ? { sink: sinks.rows?.[0]?.name ?? '' }
              : next === 'endpoint'
                ? { endpoint: endpoints.rows?.[0]?.id ?? '' }
                : { mqtt: { topic: 'alarms/${deviceId}' } },
          )
        }
        data={[
          { value: 'mqtt', label: t`MQTT topic` },
          { value: 'sink', label: t`Sink (web hook, e-mail, …)` },
          { value: 'endpoint', label: t`Relay endpoint` },
        ]}
      />
      {channel === 'mqtt' && (
        <>
          <TextInput
            aria-label={t`Topic`}
            classNames={{ input: 'mono' }}
            value={mqtt.topic}
            error={error}
            disabled={disabled}
            onChange={(event) => onChange({ mqtt: { ...mqtt, topic: event.currentTarget.value } })}
          />
          <Group>
            <NumberInput
              label={t`QoS`}
              min={0}
              max={2}
              w={90}
              disabled={disabled}
              value={mqtt.qos ?? 0}
              onChange={(qos) => onChange({ mqtt: { ...mqtt, qos: Number(qos) } })}
            />
            <Switch
              label={t`Retain`}
              mt="lg"
              disabled={disabled}
              checked={mqtt.retain ?? false}
              onChange={(event) => onChange({ mqtt: { ...mqtt, retain: event.currentTarget.checked } })}
            />
          </Group>
        </>
      )}
      {channel === 'sink' && (
        <Select
          aria-label={t`Sink`}
          placeholder={t`Choose a sink`}
          data={(sinks.rows ?? []).map((each) => each.name)}
          nothingFoundMessage={t`There is no sink yet`}
          searchable
          disabled={disabled}
          value={target.sink || null}
          error={error ?? (target.sink === '' ? t`Required` : undefined)}
          onChange={(sink) => onChange({ sink: sink ?? '' })}
        />
      )}
      {channel === 'endpoint' && (
        <Select
          aria-label={t`Relay endpoint`}
          placeholder={t`Choose an endpoint`}
          data={(endpoints.rows ?? []).map((each) => each.id)}
          nothingFoundMessage={t`There is no endpoint yet`}
          searchable
          disabled={disabled}
          value={target.endpoint || null}
          error={error ?? (target.endpoint === '' ? t`Required` : undefined)}
          onChange={(endpoint) => onChange({ endpoint: endpoint ?? '' })}
        />
      )}
    </Stack>
  );
}

function TestButton({ object }: { object: ConfigurationObject }) {
  const { t } = useLingui();
  const caller = useCaller();
  const name = String(object.name);
  const test = useChange(() => send('POST', `${objectPath(path, name)}/test`), [['/api/v1/notification-status']]);
  if (!mayInNamespace(caller, 'operator', object.namespace as string | undefined)) return null;
  return (
    <Button
      variant="default"
      leftSection={<IconSend size={14} />}
      loading={test.isPending}
      onClick={() =>
        test.mutate(undefined, {
          onSuccess: () => toasts.show({ message: t`A test notification was sent by ${name}.` }),
          onError: (error) => toasts.show({ color: 'red', message: error.message }),
        })
      }
    >
      <Trans>Send a test</Trans>
    </Button>
  );
}
