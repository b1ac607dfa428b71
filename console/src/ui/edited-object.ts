/** What an editor began with, while other people may store another version of it. */

import { useCallback, useEffect, useState } from 'react';

interface Versioned {
  version?: number | null;
}

export interface EditedObject<T> {
  /** The version that is edited; the key of the editor, so that another one begins it again. */
  base: T;
  /** Somebody else has stored another version, and the editor contains changes of this one. */
  isOutdated: boolean;
  /** The editor reports whether it contains changes. */
  setChanged: (isChanged: boolean) => void;
  /** Edits this version from now on; changes of the previous one are discarded. */
  load: (object: T) => void;
}

/**
 * Follows the newest version of an object as long as the editor contains no changes. Otherwise its version stays, so that
 * nothing that was typed is lost, and saving it over another version is rejected.
 */
export function useEditedObject<T extends Versioned>(newest: T): EditedObject<T> {
  const [base, setBase] = useState(newest);
  const [isChanged, setChanged] = useState(false);
  const next = followed(base, newest, isChanged);
  if (next !== base) setBase(next);
  const load = useCallback((object: T) => {
    setChanged(false);
    setBase(object);
  }, []);
  return { base: next, isOutdated: next.version !== newest.version, setChanged, load };
}

export function followed<T extends Versioned>(base: T, newest: T, isChanged: boolean): T {
  return isChanged || base.version === newest.version ? base : newest;
}

/** Reports whether an editor contains changes; an editor that is closed contains none. */
export function useReportedChange(isChanged: boolean, report: ((isChanged: boolean) => void) | undefined): void {
  useEffect(() => {
    report?.(isChanged);
    return () => report?.(false);
  }, [isChanged, report]);
}
