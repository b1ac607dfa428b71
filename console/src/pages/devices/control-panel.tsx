import {
  ActionIcon,
  Button,
  Group,
  Modal,
  NumberInput,
  Select,
  Slider,
  Stack,
  Switch,
  Text,
  TextInput,
} from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconApi, IconBolt, IconBulb, IconFlame, IconPencil, IconPlus, IconSend, type Icon } from '@tabler/icons-react';
import { useState, type FormEvent } from 'react';
import { useChange, useRead, type Schemas } from '../../api/client';
import { ifMatch, objectPath, readVersioned, send, type Versioned } from '../../api/objects';
import { formatDuration } from '../../format';
import { useConditionalSave, withItem, withoutItem, type ReadValue } from '../../ui/conditional-save';
import { Confirm } from '../../ui/confirm';
import { Panel } from '../../ui/page';
import { StateBadge, type Health } from '../../ui/state-badge';
import { EmptyState, ErrorState, Loading } from '../../ui/states';
import { isEqual } from '../../ui/merge';
import { isVersionConflict, VersionConflict } from '../../ui/version-conflict';
import {
  controlIcons,
  controlsAttribute,
  controlsOf,
  initialValue,
  paramsOf,
  withKind,
  type Control,
  type ControlIcon,
  type ControlKind,
} from './controls';

type Command = Schemas['Command'];

const devices = '/api/v1/devices';
/** Of a change while other attributes of the device change again and again. */
const maxAttempts = 5;
const newControl: Control = { id: '', kind: 'switch', label: '', command: '' };

function useControls(device: string) {
  const path = `${objectPath(devices, device)}/attributes/server`;
  const key = ['devices', 'attributes', device, 'server'];
  const readNow = async (signal?: AbortSignal): Promise<Versioned<Control[]>> => {
    const { value, etag } = await readVersioned<{ data: Schemas['DeviceAttribute'][] }>(path, signal);
    return { value: controlsOf(value.data.find((each) => each.key === controlsAttribute)?.value), etag };
  };
  const read = useRead([...key, controlsAttribute], readNow);
  const change = useChange(
    async ({ over, next }: { over: Versioned<Control[]>; next: Control[] }) => {
      let version = over;
      for (let attempt = 1; ; attempt += 1) {
        try {
          return await send('PUT', path, { body: { [controlsAttribute]: next }, headers: ifMatch(version) });
        } catch (error) {
          if (!isVersionConflict(error) || attempt === maxAttempts) throw error;
          // The version is that of all server attributes: it may be another one that has changed.
          version = await readNow();
          if (!isEqual(version.value, over.value)) throw error;
        }
      }
    },
    [key],
  );
  const stored = (version: Versioned<Control[]>): ReadValue<Control[]> => ({
    value: version.value,
    save: (next) => change.mutateAsync({ over: version, next }),
  });
  return { read, stored, readStored: async () => stored(await readNow()) };
}

/** Switches, sliders, numbers and buttons that send commands; everybody who may see the device sees the same. */
export function ControlPanel({ device, mayChange }: { device: string; mayChange: boolean }) {
  const { read, stored, readStored } = useControls(device);
  // The controls as they were when one was opened: what is saved is a change of these.
  const [edited, setEdited] = useState<{ control: Control; opened: ReadValue<Control[]> }>();
  if (read.error && !read.data) return <ErrorState error={read.error} retry={() => void read.refetch()} />;
  if (!read.data) return <Loading />;
  const version = read.data;
  const controls = version.value;
  const add = mayChange && (
    <Button
      variant="default"
      leftSection={<IconPlus size={14} />}
      onClick={() => setEdited({ control: newControl, opened: stored(version) })}
    >
      <Trans>Add a control</Trans>
    </Button>
  );
  return (
    <Panel title={<Trans>Controls</Trans>} actions={add}>
      {controls.length === 0 ? (
        <EmptyState title={<Trans>No controls yet</Trans>}>
          <Trans>A control sends a command to the device: a switch, a slider, a number or a button.</Trans>
        </EmptyState>
      ) : (
        <div className="controls">
          {controls.map((control) => (
            <ControlCard
              key={`${control.id} ${control.kind} ${control.defaultValue}`}
              control={control}
              device={device}
              mayChange={mayChange}
              onEdit={() => setEdited({ control, opened: stored(version) })}
            />
          ))}
        </div>
      )}
      {edited && <ControlEditor {...edited} read={readStored} onClose={() => setEdited(undefined)} />}
    </Panel>
  );
}

function ControlCard({
  control,
  device,
  mayChange,
  onEdit,
}: {
  control: Control;
  device: string;
  mayChange: boolean;
  onEdit: () => void;
}) {
  const { t } = useLingui();
  const { kind, label, min = 0, max = 100, step = 1, unit = '' } = control;
  const OwnIcon = control.icon && iconOf[control.icon];
  const [value, setValue] = useState(() => initialValue(control));
  // What the device was sent last, so that a control never shows what was not sent.
  const [sent, setSent] = useState(value);
  const [asked, setAsked] = useState<{ value: boolean | number | undefined }>();
  const run = useChange(
    (next: boolean | number | undefined) =>
      send<Command>('POST', `${objectPath(devices, device)}/commands`, {
        body: { method: control.command, params: paramsOf(kind, next), expires_in_s: 0 },
      }),
    [['/api/v1/commands'], ['devices', 'commands', device]],
  );
  const start = (next: boolean | number | undefined) =>
    run.mutate(next, {
      onSuccess: () => next !== undefined && setSent(next),
      onError: () => kind !== 'number' && setValue(sent),
    });
  const request = (next: boolean | number | undefined) => {
    if (control.isDangerous) setAsked({ value: next });
    else start(next);
  };
  const input = () => {
    switch (kind) {
      case 'switch':
        return (
          <Switch
            aria-label={label}
            size="md"
            disabled={!mayChange || run.isPending}
            checked={Boolean(value)}
            onChange={(event) => {
              setValue(event.currentTarget.checked);
              request(event.currentTarget.checked);
            }}
          />
        );
      case 'slider':
        return (
          <Slider
            thumbLabel={label}
            label={(at) => `${at} ${unit}`}
            min={min}
            max={max}
            step={step}
            disabled={!mayChange}
            value={Number(value)}
            onChange={setValue}
            onChangeEnd={request}
          />
        );
      case 'number':
        return (
          <Group gap="xs" wrap="nowrap">
            <NumberInput
              aria-label={label}
              className="grow"
              min={control.min}
              max={control.max}
              step={step}
              suffix={unit && ` ${unit}`}
              disabled={!mayChange}
              value={Number(value)}
              onChange={(next) => setValue(Number(next))}
            />
            <Button loading={run.isPending} disabled={!mayChange} onClick={() => request(value)}>
              <Trans>Set</Trans>
            </Button>
          </Group>
        );
      default:
        return (
          <Button
            leftSection={OwnIcon ? <OwnIcon size={14} /> : <IconSend size={14} />}
            color={control.isDangerous ? 'red.8' : undefined}
            loading={run.isPending}
            disabled={!mayChange}
            onClick={() => request(undefined)}
          >
            {label}
          </Button>
        );
    }
  };
  return (
    <section className="control" aria-label={label}>
      <div className="row">
        {OwnIcon && kind !== 'button' && <OwnIcon size={18} aria-hidden />}
        <strong className="grow">{label}</strong>
        {kind === 'slider' && (
          <span className="dimmed">
            {String(value)} {unit}
          </span>
        )}
        {mayChange && (
          <ActionIcon aria-label={t`Change ${label}`} size="sm" onClick={onEdit}>
            <IconPencil size={14} />
          </ActionIcon>
        )}
      </div>
      {input()}
      <div className="control-result" aria-live="polite">
        {run.isPending ? (
          <span className="dimmed">
            <Trans>waiting for the device</Trans>
          </span>
        ) : run.error ? (
          <StateBadge health="critical">{run.error.message}</StateBadge>
        ) : run.data ? (
          <CommandOutcome command={run.data} />
        ) : (
          <span className="dimmed mono">{control.command}</span>
        )}
      </div>
      {asked && (
        <Confirm
          title={
            <Trans>
              Send "{label}" to {device}?
            </Trans>
          }
          action={<Trans>Send</Trans>}
          call={{
            method: 'POST',
            path: `${objectPath(devices, device)}/commands`,
            body: { method: control.command, params: paramsOf(kind, asked.value) },
            ctl: `commands send ${device} ${control.command} '${JSON.stringify(paramsOf(kind, asked.value))}'`,
          }}
          isPending={false}
          onClose={() => {
            setAsked(undefined);
            if (kind !== 'number') setValue(sent);
          }}
          onConfirm={() => {
            start(asked.value);
            setAsked(undefined);
          }}
        >
          <Text size="sm">
            <Trans>This control is marked as dangerous.</Trans>
          </Text>
        </Confirm>
      )}
    </section>
  );
}

const iconOf: Record<ControlIcon, Icon> = { bulb: IconBulb, thunder: IconBolt, fire: IconFlame, api: IconApi };

const healthOf: Record<string, Health> = {
  success: 'good',
  failed: 'critical',
  timeout: 'critical',
  expired: 'warning',
  cancelled: 'unknown',
};

/** How a command ended, or how far it is. */
export function CommandOutcome({ command }: { command: Command }) {
  const took =
    command.finished_at_ms != null && command.sent_at_ms != null
      ? `${command.finished_at_ms - command.sent_at_ms} ms`
      : undefined;
  return (
    <StateBadge health={healthOf[command.state] ?? 'unknown'}>
      <CommandStateName state={command.state} />
      {command.state === 'success' && took ? ` (${took})` : ''}
      {command.message && (command.state === 'failed' || command.state === 'success') ? `: ${command.message}` : ''}
    </StateBadge>
  );
}

export function CommandStateName({ state }: { state: Command['state'] }) {
  switch (state) {
    case 'pending':
      return <Trans>waiting for the device</Trans>;
    case 'sent':
      return <Trans>sent</Trans>;
    case 'acknowledged':
      return <Trans>received</Trans>;
    case 'success':
      return <Trans>done</Trans>;
    case 'failed':
      return <Trans>failed</Trans>;
    case 'timeout':
      return <Trans>no answer in time</Trans>;
    case 'expired':
      return <Trans>the device was not reachable</Trans>;
    default:
      return <Trans>cancelled</Trans>;
  }
}

/** How long a command took, once it has ended. */
export function commandDuration(command: Command): string {
  if (command.finished_at_ms == null) return '–';
  const ms = command.finished_at_ms - command.created_at_ms;
  return ms < 10_000 ? `${ms} ms` : formatDuration(ms / 1000);
}

function ControlEditor({
  control,
  opened,
  read,
  onClose,
}: {
  control: Control;
  opened: ReadValue<Control[]>;
  read: () => Promise<ReadValue<Control[]>>;
  onClose: () => void;
}) {
  const { t } = useLingui();
  const [id] = useState(() => control.id || (crypto.randomUUID?.() ?? String(Date.now())));
  const [value, setValue] = useState({ ...control, id });
  const edit = useConditionalSave(opened, read, onClose);
  const removal = useConditionalSave(opened, read, onClose);
  const [isDeleting, setDeleting] = useState(false);
  const set = (change: Partial<Control>) => setValue((previous) => ({ ...previous, ...change }));
  const hasRange = value.kind === 'slider' || value.kind === 'number';
  const isReversed = hasRange && value.min !== undefined && value.max !== undefined && value.min >= value.max;
  const isOutside = hasRange && typeof value.defaultValue === 'number' && initialValue(value) !== value.defaultValue;
  const changed = (controls: Control[]) => withItem(controls, id, value);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!isReversed && !isOutside) void edit.save(changed);
  };
  const load = (controls: Control[]) => {
    const theirs = controls.find((each) => each.id === id);
    if (theirs) setValue(theirs);
    // They have removed it.
    else if (control.id) onClose();
  };
  const iconNames: Record<ControlIcon, string> = {
    bulb: t`bulb`,
    thunder: t`lightning`,
    fire: t`fire`,
    api: t`API`,
  };
  const [on, off, some] = ['{"state": "on"}', '{"state": "off"}', '{"value": 1}'];
  const number = (name: 'min' | 'max' | 'step', label: string) => (
    <NumberInput
      label={label}
      w={100}
      error={name === 'max' && isReversed ? t`More than the minimum` : undefined}
      value={value[name] ?? ''}
      onChange={(next) => set({ [name]: next === '' ? undefined : Number(next) })}
    />
  );
  return (
    <Modal opened onClose={onClose} title={control.id ? t`Change the control` : t`Add a control`}>
      <form onSubmit={submit}>
        <Stack gap="sm">
          <Select
            label={t`Kind`}
            allowDeselect={false}
            value={value.kind}
            onChange={(kind) => setValue((previous) => withKind(previous, (kind ?? 'switch') as ControlKind))}
            data={[
              { value: 'switch', label: t`switch` },
              { value: 'slider', label: t`slider` },
              { value: 'number', label: t`number` },
              { value: 'button', label: t`button` },
            ]}
          />
          <TextInput
            label={t`Label`}
            required
            data-autofocus
            maxLength={60}
            value={value.label}
            onChange={(event) => set({ label: event.currentTarget.value })}
          />
          <TextInput
            label={t`Command`}
            description={
              value.kind === 'switch'
                ? t`The method. Its parameters are ${on} or ${off}.`
                : value.kind === 'button'
                  ? t`The method. It has no parameters.`
                  : t`The method. Its parameters are ${some}.`
            }
            required
            maxLength={255}
            classNames={{ input: 'mono' }}
            value={value.command}
            onChange={(event) => set({ command: event.currentTarget.value })}
          />
          {hasRange && (
            <Group gap="xs" align="flex-start">
              {number('min', t`Minimum`)}
              {number('max', t`Maximum`)}
              {number('step', t`Step`)}
              <TextInput
                label={t`Unit`}
                w={80}
                maxLength={20}
                value={value.unit ?? ''}
                onChange={(event) => set({ unit: event.currentTarget.value || undefined })}
              />
            </Group>
          )}
          {hasRange && (
            <NumberInput
              label={t`Initial value`}
              description={t`Shown until something is sent; default: the minimum.`}
              error={isOutside ? t`Outside of the range` : undefined}
              value={typeof value.defaultValue === 'number' ? value.defaultValue : ''}
              onChange={(next) => set({ defaultValue: next === '' ? undefined : Number(next) })}
            />
          )}
          {value.kind === 'switch' && (
            <Switch
              label={t`Initially on`}
              description={t`Shown until something is sent.`}
              checked={value.defaultValue === true}
              onChange={(event) => set({ defaultValue: event.currentTarget.checked || undefined })}
            />
          )}
          <Select
            label={t`Icon`}
            placeholder={t`none`}
            clearable
            value={value.icon ?? null}
            onChange={(icon) => set({ icon: (icon ?? undefined) as ControlIcon | undefined })}
            data={controlIcons.map((icon) => ({ value: icon, label: iconNames[icon] }))}
            renderOption={({ option }) => {
              const OptionIcon = iconOf[option.value as ControlIcon];
              return (
                <span className="row">
                  <OptionIcon size={16} aria-hidden />
                  {option.label}
                </span>
              );
            }}
          />
          <Switch
            label={t`Ask before sending`}
            checked={value.isDangerous ?? false}
            onChange={(event) => set({ isDangerous: event.currentTarget.checked })}
          />
          {edit.isConflict ? (
            <VersionConflict {...edit.conflict(changed, load)} />
          ) : (
            edit.error && (
              <Text size="sm" c="var(--tg-critical)" role="alert">
                {edit.error.message}
              </Text>
            )
          )}
          <Group justify="space-between">
            {control.id ? (
              <Button variant="default" onClick={() => setDeleting(true)}>
                <Trans>Remove</Trans>
              </Button>
            ) : (
              <span />
            )}
            <Button type="submit" loading={edit.isPending}>
              <Trans>Save</Trans>
            </Button>
          </Group>
        </Stack>
      </form>
      {isDeleting && (
        <Confirm
          title={<Trans>Remove the control {control.label}?</Trans>}
          action={<Trans>Remove</Trans>}
          isPending={removal.isPending}
          error={removal.error}
          onClose={() => setDeleting(false)}
          onConfirm={() => void removal.save((controls) => withoutItem(controls, id))}
        >
          <Text size="sm">
            <Trans>It disappears for everybody who sees the device.</Trans>
          </Text>
        </Confirm>
      )}
    </Modal>
  );
}
