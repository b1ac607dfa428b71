import { notifications } from '@mantine/notifications';
import type { ReactNode } from 'react';
import { useChange } from '../api/client';
import { send } from '../api/objects';
import { Confirm } from './confirm';
import type { Call } from './show-call';

interface ConfirmDeletionProps {
  title: ReactNode;
  /** Names what is deleted with the object. */
  children: ReactNode;
  action: ReactNode;
  /** The path of the object, and the command that deletes it. */
  call: Pick<Call, 'path' | 'ctl'>;
  /** What is read again afterwards. */
  invalidates: readonly (readonly unknown[])[];
  /** Shown once the object is deleted. */
  message: string;
  /** Without: `onClose`. */
  onDeleted?: () => void;
  onClose: () => void;
}

/** Asks before an object is deleted, and deletes it. */
export function ConfirmDeletion({
  title,
  children,
  action,
  call,
  invalidates,
  message,
  onClose,
  onDeleted = onClose,
}: ConfirmDeletionProps) {
  const remove = useChange(() => send<null>('DELETE', call.path), invalidates);
  return (
    <Confirm
      title={title}
      action={action}
      call={{ method: 'DELETE', ...call }}
      isPending={remove.isPending}
      error={remove.error}
      onClose={onClose}
      onConfirm={() =>
        remove.mutate(undefined, {
          onSuccess: () => {
            notifications.show({ message });
            onDeleted();
          },
        })
      }
    >
      {children}
    </Confirm>
  );
}
